// The calls of the library as data, so that they can run now, or be recorded on a tape and run again. A call over a launch's rows
// knows their number, which can be changed.
#pragma once
#include "kernels.h"
#include "mixture.h"

extern const Kernels *used;  // of the selected instruction set

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

struct LayerNormRows {
  LayerNorm task;
  int64_t rows() const { return task.rows; }
  void take(int64_t rows) { task.rows = rows; }
  void run() const;
};

struct ActivateRows {
  Activate task;
  int64_t rows() const { return task.rows; }
  void take(int64_t rows) { task.rows = rows; }
  void run() const;
};

struct ScaleRows {
  Scale task;
  int64_t rows() const { return task.rows; }
  void take(int64_t rows) { task.rows = rows; }
  void run() const;
};

struct GateRows {
  Gate task;
  int64_t rows() const { return task.rows; }
  void take(int64_t rows) { task.rows = rows; }
  void run() const;
};

struct SigmoidGateRows {
  SigmoidGate task;
  int64_t rows() const { return task.rows; }
  void take(int64_t rows) { task.rows = rows; }
  void run() const;
};

struct WidenRows {
  Widening task;
  int64_t rows() const { return task.rows; }
  void take(int64_t rows) { task.rows = rows; }
  void run() const;
};

struct RouteRows {
  Routing task;
  int64_t rows() const { return task.rows; }
  void take(int64_t rows) { task.rows = rows; }
  void run() const;
};

struct MixExperts {
  Mixture task;
  int64_t rows() const { return task.tokens; }
  void take(int64_t rows) { task.tokens = rows; }
  void run() const;
};

struct NormGated {
  GatedNorm task;
  int64_t rows() const { return task.tokens; }
  void take(int64_t rows) { task.tokens = rows; }
  void run() const;
};

struct AddLora {
  Lora task;
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

// These hold a copy of the layer, and read the launch when they run.
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

struct TakeLatents {
  LatentLayer layer;
  LatentInput task;
  int64_t rows() const { return task.launch->tokens; }
  void take(int64_t) {}
  void run() const;
};

struct AttendLatents {
  LatentLayer layer;
  LatentAttention task;
  int64_t rows() const { return task.launch->tokens; }
  void take(int64_t) {}
  void run() const;
};

struct Encode {
  Layer layer;
  Encoding task;
  int64_t rows() const { return task.launch->tokens; }
  void take(int64_t) {}
  void run() const;
};

// These read the launch when they run, too.
struct Convolve {
  Convolution task;
  int64_t rows() const { return task.launch->tokens; }
  void take(int64_t) {}
  void run() const;
};

struct ApplyDeltaRule {
  DeltaRule task;
  int64_t rows() const { return task.launch->tokens; }
  void take(int64_t) {}
  void run() const;
};

struct RenewStates {
  StateSpace task;
  int64_t rows() const { return task.launch->tokens; }
  void take(int64_t) {}
  void run() const;
};

}  // namespace calls
