// Products with AMX, whose registers hold 16 rows of 64 bytes each (Intel 64 and IA-32 Architectures Software Developer's Manual,
// volume 1, "Programming with Intel AMX"). A tile of 32 rows by one panel of outputs keeps its sums in four of the eight
// registers. Packed weights already have the layout that the instructions need: 16 words of 16 outputs per register.
#pragma once
#include "gemm.h"

namespace VARIANT::tiles {

using namespace simd;
using gemm::At;
using gemm::Kept;

constexpr int64_t HEIGHT = 16;        // rows of a register
constexpr int64_t WIDTH = 64;         // bytes in one of its rows
constexpr int64_t APART = 4 * PANEL;  // bytes from one row of a panel's words, or sums, to the next
constexpr int64_t FEW = 4;            // so few rows are limited by memory bandwidth alone, so vectors compute them

static_assert(2 * WIDTH == APART, "a panel is two registers wide");

// A kind of weight in tile registers.
template <class Kind> struct InTiles : Kind {
  using Vectors = Kind;
  static constexpr int64_t BYTES = Kind::BITS / 8;
  static int64_t unit(const Product &) { return WIDTH / BYTES; }
};

// Registers 0 to 3 hold the sums: of the lower, then the upper rows, each for both halves of the panel. 4 and 5 hold rows, 6 and
// 7 weights.
struct Bf16 : InTiles<gemm::Bf16> {
  static void lower() {
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 4, 7);
  }
  static void upper() {
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
  }
};

struct Int8 : InTiles<gemm::Int8> {
  static void lower() {
    _tile_dpbsud(0, 4, 6);
    _tile_dpbsud(1, 4, 7);
  }
  static void upper() {
    _tile_dpbsud(2, 5, 6);
    _tile_dpbsud(3, 5, 7);
  }
};

// The number of rows in each register, in the format of `ldtilecfg`. Upper registers have none if a tile has no upper rows.
struct alignas(64) Shape {
  uint8_t palette = 1, start = 0, reserved[14] = {};
  uint16_t bytes[16] = {};
  uint8_t rows[16] = {};

  explicit Shape(int64_t height) {
    int64_t lower = height < HEIGHT ? height : HEIGHT, upper = height - lower;
    int64_t rows_of[] = {lower, lower, upper, upper, lower, upper, HEIGHT, HEIGHT};
    for (int i = 0; i < 8; i++) rows[i] = (uint8_t)rows_of[i], bytes[i] = rows_of[i] ? WIDTH : 0;
  }
};

// A compiler barrier: the compiler does not know what the tile instructions read and write.
inline void settle() { asm volatile("" ::: "memory"); }

// The thread's tile registers, while it works on a part of a task.
class Registers {
 public:
  ~Registers() { _tile_release(); }
  void take(int64_t height) {
    if (height == taken) return;
    Shape shape(height);
    settle();
    _tile_loadconfig(&shape);
    taken = height;
  }

 private:
  int64_t taken = 0;
};

// Initializes the sums of a tile before its first block, in row order.
template <class Kind> void begin(const Product &task, At at, int64_t height, char *sums) {
  for (int64_t m = 0; m < height; m++, at.row++) {
    typename Kind::Sum sum[1][PANEL / W];
    Kind::begin(task, at, sum);
    for (int v = 0; v < PANEL / W; v++) store((typename Kind::Number *)(sums + m * APART) + v * W, sum[0][v]);
  }
}

// Multiplies `steps` times 64 bytes of each row with as many rows of the panel's words, and adds the products to sums in memory.
template <class Kind, bool UPPER, class Fetcher>
void multiply(const char *rows, int64_t stride, const char *weights, const Fetcher &fetch, int64_t steps, char *sums) {
  char *others = sums + HEIGHT * APART;
  settle();
  _tile_loadd(0, sums, APART);
  _tile_loadd(1, sums + WIDTH, APART);
  if constexpr (UPPER) {
    _tile_loadd(2, others, APART);
    _tile_loadd(3, others + WIDTH, APART);
  }
  for (int64_t step = 0; step < steps; step++, rows += WIDTH, weights += HEIGHT * APART) {
    for (int64_t word = 0; word < HEIGHT; word++) fetch(step * HEIGHT + word);
    _tile_loadd(6, weights, APART);
    _tile_loadd(7, weights + WIDTH, APART);
    _tile_loadd(4, rows, stride);
    Kind::lower();
    if constexpr (UPPER) {
      _tile_loadd(5, rows + HEIGHT * stride, stride);
      Kind::upper();
    }
  }
  _tile_stored(0, sums, APART);
  _tile_stored(1, sums + WIDTH, APART);
  if constexpr (UPPER) {
    _tile_stored(2, others, APART);
    _tile_stored(3, others + WIDTH, APART);
  }
  settle();
}

// Adds the part of a block that fills whole registers to a tile's sums. Returns where the rest begins.
template <class Kind> int64_t add(const Product &task, const At &at, int64_t height, Kept &kept) {
  int64_t unit = Kind::unit(task), steps = (at.to - at.from) / unit, words = gemm::groups_of(task.k * Kind::BYTES, 4);
  if (!steps) return at.from;
  char *sums = kept.numbers + at.row % TOGETHER * APART;
  if (!at.from) begin<Kind>(task, at, height, sums);
  const char *rows = (const char *)task.x + (at.row * task.x_stride + at.from) * Kind::BYTES;
  const char *weights = (const char *)task.packed + (at.panel * words + at.from * Kind::BYTES / 4) * APART;
  auto fetching = [&](auto fetch) {
    auto of_height = height > HEIGHT ? multiply<Kind, true, decltype(fetch)> : multiply<Kind, false, decltype(fetch)>;
    of_height(rows, task.x_stride * Kind::BYTES, weights, fetch, steps, sums);
  };
  switch (gemm::way_of(at, height)) {
    case 2: fetching(gemm::Fetch<2>(weights, steps * HEIGHT, at, 0, PANEL)); break;
    case 1: fetching(gemm::Fetch<1>(weights, steps * HEIGHT, at, 0, PANEL)); break;
    default: fetching(gemm::Fetch<0>(weights, steps * HEIGHT, at, 0, PANEL));
  }
  return at.from + steps * unit;
}

// Computes the rest and the results with vectors, row by row.
template <class Finish> void finish(At at, int64_t from, int64_t height, Finish &&of_row) {
  at.from = from;
  for (int64_t m = 0; m < height; m++, at.row++) of_row(at);
}

template <class Kind> void linear(const Product &task, int64_t first, int64_t last) {
  if (task.m <= FEW && !task.in_order) return gemm::linear<typename Kind::Vectors>(task, first, last);
  Registers registers;
  gemm::walk<Kind>(task, first, last, 2 * HEIGHT, [&](const At &at, int64_t height, Kept *kept) {
    registers.take(height);
    int64_t rest = add<Kind>(task, at, height, *kept);
    if (at.to == task.k)
      finish(at, rest, height, [&](const At &row) {
        gemm::of_linear<typename Kind::Vectors, 1, gemm::Fetch<0>>(task, row, kept);
      });
  });
}

template <class Kind> void gate_up(const Product &task, int64_t first, int64_t last) {
  if (task.m <= FEW && !task.in_order) return gemm::gate_up<typename Kind::Vectors>(task, first, last);
  Registers registers;
  gemm::walk<Kind>(task, first, last, 2 * HEIGHT, [&](const At &at, int64_t height, Kept *kept) {
    registers.take(height);
    At up = at;
    up.panel += task.n / PANEL;
    int64_t rest = add<Kind>(task, at, height, kept[0]);
    add<Kind>(task, up, height, kept[1]);
    if (at.to == task.k)
      finish(at, rest, height, [&](const At &row) {
        gemm::of_gate_up<typename Kind::Vectors, 1, gemm::Fetch<0>>(task, row, kept);
      });
  });
}

}  // namespace VARIANT::tiles
