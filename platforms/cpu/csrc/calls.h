// What a function of the library is asked to do, as data, so that it can be done now or kept on a tape and done again. A
// call of a launch's rows knows how many they are, and can be told another number.
#pragma once
#include "kernels.h"

extern const Kernels *used;  // the instruction set

namespace calls {

struct Multiply {
  Kind kind;
  Product task;
  int64_t rows() const { return task.m; }
  void take(int64_t rows) { task.m = rows; }
  void run() const;
};

struct MultiplyGated {
  Kind kind;
  Product task;
  int64_t rows() const { return task.m; }
  void take(int64_t rows) { task.m = rows; }
  void run() const;
};

struct QuantiseRows {
  Quantise task;
  int64_t m;
  int64_t rows() const { return m; }
  void take(int64_t rows) { m = rows; }
  void run() const;
};

struct NormRows {
  AddNorm task;
  int64_t rows() const { return task.rows; }
  void take(int64_t rows) { task.rows = rows; }
  void run() const;
};

struct LookUp {
  Lookup task;
  int64_t m;
  int64_t rows() const { return m; }
  void take(int64_t rows) { m = rows; }
  void run() const;
};

struct LookUpPacked {
  Kind kind;
  PackedLookup task;
  int64_t rows() const { return task.m; }
  void take(int64_t rows) { task.m = rows; }
  void run() const;
};

// Both have a copy of the layer, and look at the launch when they run.
struct TakeHeads {
  Layer layer;
  HeadsInput task;
  int64_t rows() const { return task.launch->tokens; }
  void take(int64_t) {}
  void run() const;
};

struct Attend {
  Layer layer;
  Attention task;
  int64_t rows() const { return task.launch->tokens; }
  void take(int64_t) {}
  void run() const;
};

}  // namespace calls
