// Products with AMX, whose registers hold 16 rows of 64 bytes each (Intel 64 and IA-32 Architectures Software Developer's Manual,
// volume 1, "Programming with Intel AMX"). A tile of 32 rows by one panel of outputs keeps its sums in four of the eight
// registers. Packed weights already have the layout that the instructions need: 16 words of 16 outputs per register. Rows are
// laid out in the same order beforehand, because registers are loaded fastest from consecutive memory.
//
// A processor multiplies two registers in 16 cycles, in which it reads up to 32 lines from its L1 cache, but only 8 from its L2
// cache. So a chunk of a panel's weights stays in the L1 cache while all tiles use it in turn, and rows stream by from the L2 cache.
#pragma once
#include "gemm.h"

namespace VARIANT::tiles {

using namespace simd;
using gemm::At;
using gemm::groups_of;

constexpr int64_t HEIGHT = 16;        // rows of a register
constexpr int64_t WIDTH = 64;         // bytes in one of its rows
constexpr int64_t TALL = 2 * HEIGHT;  // rows of a tile
constexpr int64_t APART = 4 * PANEL;  // bytes from one row of a panel's words, or sums, to the next
constexpr int64_t OF_STEP = TALL * WIDTH;  // bytes of a tile's rows, and of a panel's weights, in a step: WIDTH bytes of k
constexpr int64_t CHUNK = 16;         // the most steps whose weights stay in the L1 cache
constexpr int64_t BLOCK = 1 << 20;    // bytes of rows that stay in the L2 cache
constexpr int64_t SUMS = 8;           // panels whose sums are kept from one block of k to the next
constexpr int64_t FAR = 512 << 10;    // more bytes of results than this are written past the caches, where rows and sums are

static_assert(2 * WIDTH == APART && HEIGHT * APART == OF_STEP, "a panel is two registers wide");

// The weights of a panel as they are packed, except that those of an incomplete step are completed with zeros. room: for a chunk.
template <int64_t BYTES> const char *packed(const Product &task, int64_t panel, int64_t from, int64_t to, char *room) {
  int64_t words = groups_of(task.k * BYTES, 4), here = words - from * HEIGHT, wanted = (to - from) * HEIGHT;
  const char *weights = (const char *)task.packed + (panel * words + from * HEIGHT) * APART;
  if (here >= wanted) return weights;
  std::memcpy(room, weights, here * APART);
  std::memset(room + here * APART, 0, (wanted - here) * APART);
  return room;
}

// Kinds of weight. Vectors: the kind whose sums and results these are; STORED: bytes of a row that make up a step. take() converts
// them; find() finds the weights of some steps, for which it has the room of a chunk.
//
// Registers 0 to 3 hold the sums: of the lower, then the upper rows, each for both halves of the panel. 4 and 5 hold rows, 6 and
// 7 weights.
struct Bf16 {
  using Vectors = gemm::Bf16;
  static constexpr int64_t STORED = WIDTH, BYTES = sizeof(bf16), FEW = 4;
  static void take(const char *from, char *to) { std::memcpy(to, from, WIDTH); }
  static const char *find(const Product &task, int64_t panel, int64_t from, int64_t to, char *room) {
    return packed<BYTES>(task, panel, from, to, room);
  }
  static void lower_left() { _tile_dpbf16ps(0, 4, 6); }
  static void lower_right() { _tile_dpbf16ps(1, 4, 7); }
  static void upper_left() { _tile_dpbf16ps(2, 5, 6); }
  static void upper_right() { _tile_dpbf16ps(3, 5, 7); }
};

// The thread's tile registers, all of them whole, while it works on a part of a task.
class Registers {
 public:
  Registers() {
    struct alignas(64) {
      uint8_t palette = 1, start = 0, reserved[14] = {};
      uint16_t bytes[16] = {};
      uint8_t rows[16] = {};
    } shape;
    for (int i = 0; i < 8; i++) shape.bytes[i] = WIDTH, shape.rows[i] = HEIGHT;
    settle();
    _tile_loadconfig(&shape);
  }
  ~Registers() { _tile_release(); }

  // A compiler barrier: the compiler does not know what the tile instructions read and write.
  static void settle() { asm volatile("" ::: "memory"); }
};

// Lays rows out: [tiles][steps][32 rows][64 bytes], with zeros beyond k and, up to whole registers, for missing rows. Item: a tile.
template <class Kind> void lay(const Conversion &task, int64_t first, int64_t last) {
  constexpr int64_t STORED = Kind::STORED, OF_ELEMENT = STORED * Kind::BYTES / WIDTH;
  int64_t bytes = task.k * OF_ELEMENT, steps = groups_of(bytes, STORED), stride = task.x_stride * OF_ELEMENT;
  for (int64_t tile = first; tile < last; tile++) {
    int64_t left = task.rows - tile * TALL, rows = left < TALL ? left : TALL;
    const char *from = (const char *)task.x + tile * TALL * stride;
    char *to = (char *)task.to + tile * steps * OF_STEP;
    for (int64_t step = 0; step < steps; step++, from += STORED, to += OF_STEP) {
      int64_t here = bytes - step * STORED;
      for (int64_t m = 0; m < groups_of(rows, HEIGHT) * HEIGHT; m++) {
        char last[STORED] = {};
        bool whole = m < rows && here >= STORED;
        if (m < rows && !whole) std::memcpy(last, from + m * stride, here);
        Kind::take(whole ? from + m * stride : last, to + m * WIDTH);
      }
    }
  }
}

// Weights to fetch into the L2 cache, some lines during each step.
struct Coming {
  const char *next, *end;
  int64_t each;
  void fetch() {
    for (int64_t i = 0; i < each && next < end; i++, next += gemm::LINE) prefetch_ahead(next);
  }
};

// Rows whose sums are complete, some of which are finished during each step: vectors work while the tile registers do.
template <class Finish> struct Finishing {
  Finish &finish;
  int64_t panel = 0, row = 0, end = 0;
  const char *sums = nullptr;
  void some(int64_t most) {
    for (int64_t until = end - row < most ? end : row + most; row < until; row++) finish(panel, row, sums);
  }
};

// Multiplies some steps of a tile's rows with as many of a panel's weights, and adds the products to sums in memory, if there are
// any yet. Rows are loaded past the L1 cache.
template <class Kind, bool UPPER, class Finish>
void multiply(const char *rows, const char *weights, int64_t steps, bool first, char *sums, Coming &coming,
              Finishing<Finish> &finishing) {
  char *others = sums + HEIGHT * APART;
  Registers::settle();
  if (first) {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
  } else {
    _tile_loadd(0, sums, APART);
    _tile_loadd(1, sums + WIDTH, APART);
    if constexpr (UPPER) {
      _tile_loadd(2, others, APART);
      _tile_loadd(3, others + WIDTH, APART);
    }
  }
  int64_t each = groups_of(finishing.end - finishing.row, steps);
  for (int64_t step = 0; step < steps; step++, rows += OF_STEP, weights += OF_STEP) {
    coming.fetch();
    finishing.some(each);
    _tile_stream_loadd(4, rows, WIDTH);
    _tile_loadd(6, weights, APART);
    Kind::lower_left();
    if constexpr (UPPER) {
      _tile_stream_loadd(5, rows + HEIGHT * WIDTH, WIDTH);
      Kind::upper_left();
    }
    _tile_loadd(7, weights + WIDTH, APART);
    Kind::lower_right();
    if constexpr (UPPER) Kind::upper_right();
  }
  _tile_stored(0, sums, APART);
  _tile_stored(1, sums + WIDTH, APART);
  if constexpr (UPPER) {
    _tile_stored(2, others, APART);
    _tile_stored(3, others + WIDTH, APART);
  }
  Registers::settle();
}

// Multiplies all rows with panels first to last, or, with two SIDES, each with its up panel: finish(panel, row, sums) is called
// when the sums of a row with a panel, and with its up panel behind them, are complete.
template <class Kind, int SIDES, class Finish> void walk(const Product &task, int64_t first, int64_t last, Finish &&finish) {
  alignas(64) char sums[SUMS][TOGETHER * APART], room[CHUNK * OF_STEP];
  int64_t steps = groups_of(task.k * Kind::BYTES, WIDTH), tiles = groups_of(task.m, TALL);
  int64_t chunk = groups_of(steps, groups_of(steps, CHUNK)), block = BLOCK / (tiles * OF_STEP) / chunk * chunk;
  if (block < chunk) block = chunk;
  int64_t of_panel = task.k * Kind::BYTES * PANEL;
  Finishing<Finish> finishing{finish};
  Registers registers;
  int64_t most = block < steps ? SUMS / SIDES : 1;  // panels, or pairs of them, whose sums are kept
  for (int64_t group = first; group < last; group += most) {
    int64_t count = (last - group < most ? last - group : most) * SIDES;
    auto panel = [&](int64_t i) { return group + i / SIDES + i % SIDES * (task.n / PANEL); };
    for (int64_t from = 0, to; from < steps; from = to) {
      to = from + block < steps ? from + block : steps;
      for (int64_t i = 0; i < count; i++) {
        // What comes next: this block of the next panel, or the next one of the first.
        int64_t after = i + 1 < count ? panel(i + 1) : to < steps ? panel(0) : panel(0) + most;
        int64_t begin = i + 1 < count ? from : to < steps ? to : 0, end = begin + to - from < steps ? begin + to - from : steps;
        const char *of_next = (const char *)task.packed + after * of_panel;
        Coming coming{of_next + begin * of_panel / steps, of_next + end * of_panel / steps, groups_of(TALL, tiles)};
        for (int64_t at = from, until; at < to; at = until) {
          until = at + chunk < to ? at + chunk : to;
          const char *weights = Kind::find(task, panel(i), at, until, room);
          const char *rows = (const char *)task.x + at * OF_STEP;
          for (int64_t tile = 0; tile < tiles; tile++, rows += steps * OF_STEP) {
            auto of_height = task.m - tile * TALL > HEIGHT ? multiply<Kind, true, Finish> : multiply<Kind, false, Finish>;
            of_height(rows, weights, until - at, !at, sums[i] + tile * TALL * APART, coming, finishing);
            if (until < steps || i % SIDES < SIDES - 1) continue;
            finishing.panel = panel(i + 1 - SIDES), finishing.sums = sums[i + 1 - SIDES];
            finishing.row = tile * TALL, finishing.end = task.m < finishing.row + TALL ? task.m : finishing.row + TALL;
          }
        }
      }
    }
  }
  finishing.some(TALL);
}

// The result of a row and a panel, whose sums began at zero.
template <class Kind>
void result_of(const Product &task, int64_t row, int64_t panel, const char *sums, Float (&result)[1][PANEL / W]) {
  using Vectors = typename Kind::Vectors;
  auto *here = (const typename Vectors::Number *)(sums + row * APART);
  At at{row, panel, 0, task.k, 0, 1, nullptr};
  typename Vectors::Sum sum[1][PANEL / W];
  Vectors::begin(task, at, sum);
  for (int v = 0; v < PANEL / W; v++) sum[0][v] = add(sum[0][v], load(here + v * W));
  Vectors::end(task, at, 0, sum, result);
}

// Where results go, a line of a row at a time.
class Results {
 public:
  explicit Results(const Product &task) : task(task) {
    bool whole_lines = !((uintptr_t)task.out % gemm::LINE) && !(task.out_stride % PANEL);
    far = whole_lines && task.m * task.n * (int64_t)sizeof(bf16) > FAR;
  }
  ~Results() {
    if (far) end_of_far_stores();
  }
  void put(int64_t row, int64_t panel, const Float (&x)[PANEL / W]) const {
    int64_t column = panel * PANEL, room = task.n - column;
    bf16 *out = (bf16 *)task.out + row * task.out_stride + column;
    if (far && room >= PANEL) return store_bf16_far(out, x[0], x[1]);
    for (int v = 0; v < PANEL / W; v++) gemm::put(out + v * W, x[v], room - v * W);
  }

 private:
  const Product &task;
  bool far;
};

template <class Kind> void linear(const Product &task, int64_t first, int64_t last) {
  Results results(task);
  walk<Kind, 1>(task, first, last, [&](int64_t panel, int64_t row, const char *sums) {
    Float result[1][PANEL / W];
    result_of<Kind>(task, row, panel, sums, result);
    int64_t column = panel * PANEL;
    if (task.bias)
      for (int v = 0; v < PANEL / W; v++, column += W)
        result[0][v] = add(result[0][v], gemm::bias_at((const bf16 *)task.bias + column, task.n - column));
    results.put(row, panel, result[0]);
  });
}

template <class Kind> void gate_up(const Product &task, int64_t first, int64_t last) {
  Results results(task);
  walk<Kind, 2>(task, first, last, [&](int64_t panel, int64_t row, const char *sums) {
    Float gate[1][PANEL / W], up[1][PANEL / W];
    result_of<Kind>(task, row, panel, sums, gate);
    result_of<Kind>(task, row, panel + task.n / PANEL, sums + TOGETHER * APART, up);
    for (int v = 0; v < PANEL / W; v++) up[0][v] = mul(activated(gate[0][v], task.activation), up[0][v]);
    results.put(row, panel, up[0]);
  });
}

// Few rows are limited by memory bandwidth alone, so vectors multiply them as they are.
template <class Kind>
constexpr Products OF = {{linear<Kind>, gate_up<Kind>, lay<Kind>, Kind::BYTES, WIDTH / Kind::BYTES, TALL, INT64_MAX},
                         gemm::BF16_WAY,
                         Kind::FEW};
constexpr Products OF_BF16 = OF<Bf16>;

}  // namespace VARIANT::tiles
