// What the processor has that instruction sets need beyond what it was compiled for, as the system says.
#pragma once

#if defined(__x86_64__)
#include <cpuid.h>
#endif
#if defined(__linux__)
#include <sys/auxv.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>
#elif defined(__APPLE__)
#include <sys/sysctl.h>
#endif

namespace processor {

#if defined(__x86_64__)
inline bool has_avx2() { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c"); }
inline bool has_avx512() {
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
         __builtin_cpu_supports("avx512dq");
}
inline bool has_avx512_vnni() { return has_avx512() && __builtin_cpu_supports("avx512vnni"); }
inline bool has_avx512_bf16() { return has_avx512_vnni() && __builtin_cpu_supports("avx512bf16"); }
#if defined(__linux__)
// Whether AMX tile registers for bf16 exist and this process may use them; Linux grants that on request.
inline bool may_use_tiles() {
  constexpr unsigned TILES = 1u << 22 | 1u << 24;
  constexpr long REQUEST = 0x1023, TILE_DATA = 18;
  unsigned eax, ebx, ecx, edx;
  if (!__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) || (edx & TILES) != TILES) return false;
  return syscall(SYS_arch_prctl, REQUEST, TILE_DATA) == 0;
}
inline bool has_amx() { return has_avx512_bf16() && may_use_tiles(); }
#endif

#elif defined(__aarch64__)
#if defined(__linux__)
// The bits of Linux's arch/arm64/include/uapi/asm/hwcap.h, which an older system's headers lack.
constexpr unsigned long DOT_PRODUCT = 1ul << 20, SVE = 1ul << 22;                                    // AT_HWCAP
constexpr unsigned long SVE_I8MM = 1ul << 9, SVE_BF16 = 1ul << 12, I8MM = 1ul << 13, BF16 = 1ul << 14;  // AT_HWCAP2
inline bool has(unsigned long bits, unsigned long more) {
  return (getauxval(AT_HWCAP) & bits) == bits && (getauxval(AT_HWCAP2) & more) == more;
}
inline bool has_neon_dotprod() { return has(DOT_PRODUCT, 0); }
inline bool has_neon_bf16() { return has(DOT_PRODUCT, BF16 | I8MM); }
// The vectors of this process, in bits; 0 without SVE.
inline int sve_bits() {
  constexpr int GET_LENGTH = 51, LENGTH = 0xffff;
  return has(SVE, 0) ? (prctl(GET_LENGTH) & LENGTH) * 8 : 0;
}
inline bool has_sve_256() { return sve_bits() == 256; }
inline bool has_sve_256_bf16() { return has_sve_256() && has(DOT_PRODUCT, SVE_BF16 | SVE_I8MM | BF16 | I8MM); }
inline bool has_sve_512() { return sve_bits() == 512; }
#else
inline bool has(const char *name) {
  int there = 0;
  size_t size = sizeof there;
  return sysctlbyname(name, &there, &size, nullptr, 0) == 0 && there;
}
inline bool has_neon_dotprod() { return has("hw.optional.arm.FEAT_DotProd"); }
inline bool has_neon_bf16() {
  return has_neon_dotprod() && has("hw.optional.arm.FEAT_BF16") && has("hw.optional.arm.FEAT_I8MM");
}
#endif

#elif defined(__powerpc64__)
// The bits of Linux's arch/powerpc/include/uapi/asm/cputable.h: Power ISA 3.0, and MMA of 3.1.
inline bool has_vsx() { return getauxval(AT_HWCAP2) & 0x00800000; }
inline bool has_mma() { return has_vsx() && getauxval(AT_HWCAP2) & 0x00020000; }
#endif

}  // namespace processor
