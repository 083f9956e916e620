#include "mixture.h"

#include <initializer_list>

#include "room.h"
#include "threads.h"

namespace {

constexpr int64_t BETWEEN = 64 << 20;  // bytes of rows between the products, beyond which a step's experts are run in several waves

int64_t ceil_of(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Rows of a wave for one expert, from the first-th of the wave on.
struct Group {
  int64_t expert, first, rows;
};

// Memory that is handed out piece by piece; without a start, only counted.
struct Space {
  char *start;
  int64_t bytes = 0;
  template <class T> T *take(int64_t count) {
    bytes = ceil_of(bytes, 64) * 64;
    auto *piece = start ? (T *)(start + bytes) : nullptr;
    bytes += count * (int64_t)sizeof(T);
    return piece;
  }
};

// One of the two products of all experts, and the form in which it takes rows.
class Side {
 public:
  Side(const Kernels &kernels, Kind kind, const Product &product, int64_t apart, int64_t size)
      : kernels(kernels), kind(kind), product(product), apart(apart), size(size) {
    const Products &products = kernels.products[kind];
    for (bool few : {false, true}) {
      const Multiplying &way = few ? products.of_few : products.of_many;
      if (!way.convert) continue;
      int64_t bytes = stride_of(way) * way.bytes, fit = way.most / bytes / way.tile * way.tile;
      of_row = bytes > of_row ? bytes : of_row;
      tall = way.tile > tall ? way.tile : tall;
      most = fit < way.tile ? way.tile : fit < most ? fit : most;
    }
  }

  // Rows of a group, at most.
  int64_t height() const { return most; }
  // Whether rows are converted, by groups; otherwise they are quantized, or taken as they are, each by itself.
  bool by_groups() const { return of_row; }
  int64_t panels() const { return ceil_of(product.n, PANEL); }

  void lay(Space &space, int64_t rows, int64_t groups) {
    if (by_groups()) converted = space.take<char>((rows + groups * (tall - 1)) * of_row);
    if (kind != of_codes) return;
    stored = ceil_of(product.k, SPAN) * SPAN;
    quantised = {space.take<int8_t>(rows * stored), stored, space.take<float>(rows * scales()),
                 space.take<int32_t>(rows * parts()), product.x_group, product.x_part};
    units = space.take<Unit>(rows * units_of_row());
  }

  // Rows `first` to before `last` of x [rows, k], unless they are converted.
  void ready(const char *x, int64_t first, int64_t last) const {
    if (kind != of_codes) return;
    Product with = product;
    with.x_scale = quantised.scale, with.x_sum = quantised.sums, with.x_units = units;
    kernels.quantise({(const bf16 *)x, product.k, quantised, product.k}, first, last);
    kernels.units(with, first, last);
  }

  // The rows of a group; number: of the group in its wave.
  void ready(const char *x, const Group &group, int64_t number) const {
    const Multiplying &way = way_of_group(group);
    if (!way.convert) return;
    Conversion rows{x + group.first * product.k * size, product.k, place_of(group, number), stride_of(way), group.rows, product.k};
    way.convert(rows, 0, ceil_of(group.rows, way.tile));
  }

  // Multiplies the rows of a group with some panels. x: all rows, as they were before they were made ready.
  void multiply(const char *x, char *out, const Group &group, int64_t number, int64_t first, int64_t last) const {
    const Multiplying &way = way_of_group(group);
    Product task = product;
    int64_t weight = group.expert * apart;
    task.m = group.rows;
    task.packed = (const char *)product.packed + weight;
    if (product.bias) task.bias = (const char *)product.bias + group.expert * product.n * size;
    task.out = out + group.first * product.n * size, task.out_stride = product.n;
    task.x = x + group.first * product.k * size, task.x_stride = product.k;
    if (kind == of_codes) {
      task.coding.scales = (const char *)product.coding.scales + weight;
      task.x = quantised.elements + group.first * stored, task.x_stride = stored;
      task.x_scale = quantised.scale + group.first * scales();
      task.x_sum = quantised.sums + group.first * parts();
      task.x_units = units + group.first * units_of_row();
    } else if (way.convert) {
      task.x = place_of(group, number), task.x_stride = stride_of(way);
    }
    way.linear(task, first, last);
  }

 private:
  const Kernels &kernels;
  Kind kind;
  const Product &product;
  int64_t apart, size;  // size: of an element of rows and results
  int64_t of_row = 0, tall = 1, most = TOGETHER, stored = 0;
  char *converted = nullptr;
  Int8Rows quantised{};
  Unit *units = nullptr;

  int64_t stride_of(const Multiplying &way) const { return ceil_of(product.k, way.unit) * way.unit; }
  int64_t scales() const { return ceil_of(product.k, product.x_group); }
  int64_t parts() const { return ceil_of(product.k, product.x_part); }
  int64_t units_of_row() const { return ceil_of(product.k, product.unit); }
  char *place_of(const Group &group, int64_t number) const { return converted + (group.first + number * (tall - 1)) * of_row; }
  const Multiplying &way_of_group(const Group &group) const {
    Product task = product;
    task.m = group.rows;
    return way_of(kernels, kind, task);
  }
};

// A step's choices of the experts that are here, in the order of these.
struct Plan {
  int32_t *choices;  // [all]: see Gathering
  int32_t *places;   // [tokens, top_k]: see Joining
  int64_t *ends;     // [experts]: behind the last choice of each
  int64_t all;

  static Plan lay(Space &space, const Mixture &task) {
    int64_t pairs = task.tokens * task.top_k;
    return {space.take<int32_t>(pairs), space.take<int32_t>(pairs), space.take<int64_t>(task.experts), 0};
  }

  void make(const Mixture &task) {
    int64_t pairs = task.tokens * task.top_k, next = 0;
    auto expert = [&](int64_t choice) {
      int64_t here = task.ids[choice] - task.first;
      return here >= 0 && here < task.experts ? here : -1;
    };
    for (int64_t e = 0; e < task.experts; e++) ends[e] = 0;
    for (int64_t i = 0; i < pairs; i++)
      if (expert(i) >= 0) ends[expert(i)]++;
    for (int64_t e = 0; e < task.experts; e++) {
      int64_t count = ends[e];
      ends[e] = next, next += count;
    }
    all = next;
    for (int64_t i = 0; i < pairs; i++)
      if (expert(i) >= 0) choices[ends[expert(i)]++] = (int32_t)i;
    for (int64_t i = 0; i < pairs; i++) places[i] = -1;
    for (int64_t i = 0; i < all; i++) {
      int32_t *place = places + choices[i] / task.top_k * task.top_k;
      while (*place >= 0) place++;
      *place = (int32_t)i;
    }
  }
};

// What is done with the rows of a wave. Each part has a number of items, which threads share.
struct Wave {
  const Kernels &kernels;
  const Mixture &task;
  Side wide, back;
  int64_t size;                                   // of an element of activations
  Group *groups = nullptr;
  char *given = nullptr, *inner = nullptr, *opened = nullptr;  // [rows, k], [rows, n] of wide, [rows, k] of back
  float *sums = nullptr;                          // [tokens, n]: of the waves before, if there are several
  int64_t count = 0, start = 0, rows = 0;         // count: of groups; start: of the first row among all
  const int32_t *choices = nullptr;               // of the wave's rows

  Wave(const Kernels &kernels, const Mixture &task, int64_t size)
      : kernels(kernels),
        task(task),
        wide(kernels, task.wide_kind, task.wide, task.wide_apart, size),
        back(kernels, task.back_kind, task.back, task.back_apart, size),
        size(size) {}

  int64_t height() const { return wide.height() < back.height() ? wide.height() : back.height(); }
  int64_t most_groups(int64_t most) const { return (most < task.experts ? most : task.experts) + most / height(); }

  // most: rows of a wave.
  void lay(Space &space, int64_t most, bool several) {
    given = space.take<char>(most * size * (task.wide.k > task.back.n ? task.wide.k : task.back.n));
    inner = space.take<char>(most * size * task.wide.n);
    opened = space.take<char>(most * size * task.back.k);
    int64_t number = most_groups(most);
    groups = space.take<Group>(number);
    wide.lay(space, most, number);
    back.lay(space, most, number);
    if (several) sums = space.take<float>(task.tokens * task.back.n);
  }

  // The rows from `from` to before `to` of a plan.
  void take(const Plan &plan, int64_t from, int64_t to) {
    start = from, rows = to - from, count = 0, choices = plan.choices + from;
    int64_t begin = 0;
    for (int64_t expert = 0; expert < task.experts; begin = plan.ends[expert++]) {
      int64_t first = begin < from ? from : begin, last = plan.ends[expert] < to ? plan.ends[expert] : to;
      for (; first < last; first += height())
        groups[count++] = {expert, first - from, last - first < height() ? last - first : height()};
    }
  }

  // What rows are like before the products, as an item: a group, or a row.
  int64_t items_of(const Side &side) const { return side.by_groups() ? count : rows; }
  template <class Make> void ready(const Side &side, const char *x, int64_t first, int64_t last, Make &&make) const {
    if (!side.by_groups()) {
      make(first, last);
      return side.ready(x, first, last);
    }
    for (int64_t i = first; i < last; i++) {
      make(groups[i].first, groups[i].first + groups[i].rows);
      side.ready(x, groups[i], i);
    }
  }

  void enter(int64_t first, int64_t last) const {
    Gathering gathering{task.x, task.x_stride, task.weighs_inputs ? task.weights : nullptr, choices, given, task.wide.k, task.top_k};
    ready(wide, given, first, last, [&](int64_t from, int64_t to) { kernels.gather[task.gate.number](gathering, from, to); });
  }

  void open(int64_t first, int64_t last) const {
    int64_t n = task.back.k, number = task.gate.number;
    Gate gate = task.gate;
    gate.x = inner, gate.x_stride = task.wide.n, gate.out = opened, gate.out_stride = n;
    Activate activate{inner, task.wide.n, opened, n, rows, n, gate.activation, gate.number};
    ready(back, opened, first, last, [&](int64_t from, int64_t to) {
      task.gated ? kernels.gate[number](gate, from, to) : kernels.activate[number](activate, from, to);
    });
  }

  // Item: a panel of a group.
  void multiply(const Side &side, const char *x, char *out, int64_t first, int64_t last) const {
    int64_t panels = side.panels();
    while (first < last) {
      int64_t number = first / panels, from = first % panels, to = last - number * panels < panels ? last - number * panels : panels;
      side.multiply(x, out, groups[number], number, from, to);
      first += to - from;
    }
  }

  void run(const Plan &plan) const {
    using threads::grain_of;
    threads::run<Wave>([](const Wave &wave, int64_t first, int64_t last) { wave.enter(first, last); }, *this, items_of(wide),
                       wide.by_groups() ? 1 : grain_of(rows, task.wide.k));
    threads::run<Wave>([](const Wave &wave, int64_t first, int64_t last) {
      wave.multiply(wave.wide, wave.given, wave.inner, first, last);
    }, *this, count * wide.panels());
    threads::run<Wave>([](const Wave &wave, int64_t first, int64_t last) { wave.open(first, last); }, *this, items_of(back),
                       back.by_groups() ? 1 : grain_of(rows, task.back.k));
    threads::run<Wave>([](const Wave &wave, int64_t first, int64_t last) {
      wave.multiply(wave.back, wave.opened, wave.given, first, last);
    }, *this, count * back.panels());
    join(plan);
  }

  void join(const Plan &plan) const {
    Joining joining{given, plan.places, plan.choices, task.weighs_inputs ? nullptr : task.weights, sums, task.out, task.out_stride,
                    task.back.n, task.top_k, start, start + rows, plan.all};
    threads::run(kernels.join_experts[task.gate.number], joining, task.tokens,
                 threads::grain_of(task.tokens, task.top_k * task.back.n));
  }
};

}  // namespace

namespace mixture {

void mix(const Kernels &kernels, const Mixture &task) {
  int64_t pairs = task.tokens * task.top_k, size = task.gate.number == float_entry ? sizeof(float) : sizeof(bf16);
  Wave wave(kernels, task, size);
  Space of_row{nullptr};
  wave.lay(of_row, wave.height(), false);
  int64_t most = BETWEEN / (of_row.bytes / wave.height() + 1);
  most = most < wave.height() ? wave.height() : most;
  most = most < pairs ? most : pairs;
  auto lay = [&](char *start, Plan &plan) {
    Space space{start};
    plan = Plan::lay(space, task);
    wave.lay(space, most, pairs > most);
    return space.bytes;
  };
  Plan plan;
  int64_t bytes = lay(nullptr, plan);
  lay((char *)room_of(bytes), plan);
  plan.make(task);
  if (!plan.all) return wave.join(plan);
  for (int64_t from = 0, to; from < plan.all; from = to) {
    to = plan.all - from < most ? plan.all : from + most;
    wave.take(plan, from, to);
    wave.run(plan);
  }
}

}  // namespace mixture
