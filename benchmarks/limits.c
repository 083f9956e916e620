// Kernels that do nothing but read, or nothing but multiply and add: what no program on this machine can exceed.

#include <stddef.h>
#include <stdint.h>

#if defined(__AVX2__) || defined(__AVX512F__)
#include <immintrin.h>
#endif
#if defined(__AMX_TILE__) && defined(__AMX_BF16__) && defined(__AMX_INT8__) && defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#define TILES
#endif

// A vector as wide as a register: of a wider one the compiler keeps the sums in memory.
#if defined(__AVX512F__)
#define WIDTH 64
#elif defined(__AVX__)
#define WIDTH 32
#else
#define WIDTH 16
#endif

typedef uint64_t words __attribute__((vector_size(WIDTH)));
typedef float floats __attribute__((vector_size(WIDTH)));

enum { CHAINS = 12, LANES = WIDTH / 4, LINE = 64 / WIDTH };

// Several streams at once keep more of the memory's channels busy than one does, and what is asked for too far ahead is in the
// way of what is read; which number and which distance is best is measured.
static inline __attribute__((always_inline)) uint64_t read_streams(const words *data, size_t lines, int streams, int ahead) {
    words seen[4] = {{0}};
    size_t part = lines / streams * LINE;
    for (size_t i = 0; i < part; i += LINE) {
        for (int s = 0; s < streams; s++) {
            const words *place = data + s * part + i;
            if (ahead) __builtin_prefetch(place + ahead * LINE);
            for (int w = 0; w < LINE; w++) seen[s] ^= place[w];
        }
    }
    words all = seen[0] ^ seen[1] ^ seen[2] ^ seen[3];
    return all[0] ^ all[1];
}

// lines: of 64 bytes, a multiple of 4. ahead: how many of them are fetched before they are read; 0: none, since some processors
// see by themselves what comes next and read faster so.
uint64_t read_memory(const void *data, size_t lines, int streams, int ahead) {
    if (streams == 1) return read_streams(data, lines, 1, ahead);
    if (streams == 2) return read_streams(data, lines, 2, ahead);
    return read_streams(data, lines, 4, ahead);
}

// Each returns the arithmetic operations it did. Independent chains hide how long one operation takes; each begins with
// another value, or the compiler would see that they are all the same.
double multiply_float32(size_t rounds, float *out) {
    floats sums[CHAINS], factor, term;
    for (int c = 0; c < CHAINS; c++) sums[c] = (floats){(float)c};
    for (int i = 0; i < LANES; i++) factor[i] = out[i], term[i] = out[16 + i];
    for (size_t r = 0; r < rounds; r++) {
        for (int c = 0; c < CHAINS; c++) sums[c] = sums[c] * factor + term;
    }
    for (int c = 1; c < CHAINS; c++) sums[0] += sums[c];
    for (int i = 0; i < LANES; i++) out[i] = sums[0][i];
    return 2.0 * LANES * CHAINS * rounds;
}

#if defined(TILES)
// Whether Linux lets this process use the tile registers; then all eight are 16 rows of 64 bytes.
static int tiles_are_ready(void) {
    struct { uint8_t palette, start, reserved[14]; uint16_t bytes[16]; uint8_t rows[16]; } shape = {.palette = 1};
    if (syscall(SYS_arch_prctl, 0x1023 /* ARCH_REQ_XCOMP_PERM */, 18 /* tile data */)) return 0;
    for (int i = 0; i < 8; i++) shape.bytes[i] = 64, shape.rows[i] = 16;
    __asm__ volatile("" : : "r"(&shape) : "memory");
    _tile_loadconfig(&shape);
    return 1;
}

// Four sums from two registers of rows and two of weights, as a product has them. elements: in a row of a register.
#define MULTIPLY_TILES(instruction, elements) do { \
    _tile_zero(0); _tile_zero(1); _tile_zero(2); _tile_zero(3); \
    _tile_zero(4); _tile_zero(5); _tile_zero(6); _tile_zero(7); \
    for (size_t r = 0; r < rounds; r++) { \
        instruction(0, 4, 6); instruction(1, 4, 7); \
        instruction(2, 5, 6); instruction(3, 5, 7); \
    } \
    _tile_release(); \
    return 2.0 * 16 * 16 * elements * 4 * rounds; \
} while (0)
#endif

// Where no instruction multiplies bfloat16, it is widened and multiplied as floats are.
double multiply_bfloat16(size_t rounds, float *out) {
#if defined(TILES)
    if (tiles_are_ready()) MULTIPLY_TILES(_tile_dpbf16ps, 32);
#endif
#if defined(__AVX512BF16__)
    __m512 sums[CHAINS];
    __m512bh factor = (__m512bh)_mm512_loadu_si512(out), term = (__m512bh)_mm512_loadu_si512(out + 16);
    for (int c = 0; c < CHAINS; c++) sums[c] = _mm512_set1_ps((float)c);
    for (size_t r = 0; r < rounds; r++) {
        for (int c = 0; c < CHAINS; c++) sums[c] = _mm512_dpbf16_ps(sums[c], factor, term);
    }
    for (int c = 1; c < CHAINS; c++) sums[0] = _mm512_add_ps(sums[0], sums[c]);
    _mm512_storeu_ps(out, sums[0]);
    return 2.0 * 32 * CHAINS * rounds;
#else
    return multiply_float32(rounds, out);
#endif
}

// 0 where the compiler knows no instruction for it on this machine.
double multiply_int8(size_t rounds, float *out) {
#if defined(TILES)
    if (tiles_are_ready()) MULTIPLY_TILES(_tile_dpbsud, 64);
#endif
#if defined(__AVX512VNNI__)
    __m512i sums[CHAINS], factor = _mm512_loadu_si512(out), term = _mm512_loadu_si512(out + 16);
    for (int c = 0; c < CHAINS; c++) sums[c] = _mm512_set1_epi32(c);
    for (size_t r = 0; r < rounds; r++) {
        for (int c = 0; c < CHAINS; c++) sums[c] = _mm512_dpbusd_epi32(sums[c], factor, term);
    }
    for (int c = 1; c < CHAINS; c++) sums[0] = _mm512_add_epi32(sums[0], sums[c]);
    _mm512_storeu_si512(out, sums[0]);
    return 2.0 * 64 * CHAINS * rounds;
#elif defined(__AVXVNNI__)
    __m256i sums[CHAINS], factor = _mm256_loadu_si256((void *)out), term = _mm256_loadu_si256((void *)(out + 16));
    for (int c = 0; c < CHAINS; c++) sums[c] = _mm256_set1_epi32(c);
    for (size_t r = 0; r < rounds; r++) {
        for (int c = 0; c < CHAINS; c++) sums[c] = _mm256_dpbusd_avx_epi32(sums[c], factor, term);
    }
    for (int c = 1; c < CHAINS; c++) sums[0] = _mm256_add_epi32(sums[0], sums[c]);
    _mm256_storeu_si256((void *)out, sums[0]);
    return 2.0 * 32 * CHAINS * rounds;
#elif defined(__AVX2__)
    // Sums of two products may not fit 16 bits, so what multiplies all numbers rightly takes longer.
    __m256i sums[CHAINS], factor = _mm256_loadu_si256((void *)out), term = _mm256_loadu_si256((void *)(out + 16));
    __m256i ones = _mm256_set1_epi16(1);
    for (int c = 0; c < CHAINS; c++) sums[c] = _mm256_set1_epi32(c);
    for (size_t r = 0; r < rounds; r++) {
        for (int c = 0; c < CHAINS; c++) {
            __m256i products = _mm256_madd_epi16(_mm256_maddubs_epi16(factor, term), ones);
            __asm__("vpaddd %1, %0, %0" : "+x"(sums[c]) : "x"(products));
            __asm__("" : "+x"(factor));
        }
    }
    for (int c = 1; c < CHAINS; c++) sums[0] = _mm256_add_epi32(sums[0], sums[c]);
    _mm256_storeu_si256((void *)out, sums[0]);
    return 2.0 * 32 * CHAINS * rounds;
#else
    (void)rounds, (void)out;
    return 0;
#endif
}
