// Device memory is host memory under another device's name: counted, limited, and all bits set until it is written.
#pragma once

#include "ledger.h"

#include <ATen/Functions.h>
#include <ATen/core/Tensor.h>
#include <c10/core/CachingDeviceAllocator.h>

#include <array>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <iterator>

namespace fakechip {

constexpr size_t kBytes = size_t{kType == c10::DeviceType::HPU ? 1024 : 256} << 20;  // of each device
constexpr size_t kAlignment = 64;

inline thread_local int current = 0;
inline std::array<std::atomic<int64_t>, kDevices> live{}, allocated{}, peak{};

struct Block {
  int device;
  size_t nbytes;
  void* data;
  at::Tensor adopted;  // whose memory it is, where a kernel of the host made it
};

inline void release(void* context) {
  std::unique_ptr<Block> block(static_cast<Block*>(context));
  live[block->device] -= block->nbytes;
  if (!block->adopted.defined()) std::free(block->data);
}

inline c10::DataPtr counted(std::unique_ptr<Block> block) {
  const int64_t now = live[block->device] += block->nbytes;
  if (now > peak[block->device]) peak[block->device] = now;
  allocated[block->device] += block->nbytes;
  const c10::Device device(kType, block->device);
  void* data = block->data;
  return {data, block.release(), &release, device};
}

class Allocator final : public c10::DeviceAllocator {
 public:
  c10::DataPtr allocate(size_t nbytes) override {
    TORCH_CHECK_WITH(
        OutOfMemoryError, live[current] + nbytes <= kBytes, "fakechip:", current, " is out of memory: ", nbytes,
        " bytes asked for, ", kBytes - live[current], " free");
    void* data = nullptr;
    if (nbytes > 0) {
      data = std::aligned_alloc(kAlignment, (nbytes + kAlignment - 1) / kAlignment * kAlignment);
      std::memset(data, 0xff, nbytes);
    }
    return counted(std::make_unique<Block>(Block{current, nbytes, data, {}}));
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* to, const void* from, size_t nbytes) const override { std::memcpy(to, from, nbytes); }
  bool initialized() override { return true; }
  void emptyCache(c10::MempoolId_t) override {}
  void recordStream(const c10::DataPtr&, c10::Stream) override {}
  // Nothing is kept back, so what is reserved is what is allocated.
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex index) override {
    c10::CachingDeviceAllocator::DeviceStats stats;
    for (auto* of : {&stats.allocated_bytes, &stats.reserved_bytes})
      (*of)[0].current = live[index], (*of)[0].peak = peak[index];
    return stats;
  }
  void resetAccumulatedStats(c10::DeviceIndex) override {}
  void resetPeakStats(c10::DeviceIndex index) override { peak[index] = live[index].load(); }
  std::pair<size_t, size_t> getMemoryInfo(c10::DeviceIndex index) override { return {kBytes - live[index], kBytes}; }
};

inline Allocator& allocator() {
  static Allocator one;
  return one;
}

inline bool on_device(const at::Tensor& tensor) { return tensor.device().type() == kType; }

// The same memory as a tensor of the host, for the host's kernels.
inline at::Tensor host_alias(const at::Tensor& tensor) {
  c10::DataPtr data(tensor.storage().mutable_data(), c10::Device(c10::kCPU));
  c10::Storage storage(c10::Storage::use_byte_size_t(), tensor.storage().nbytes(), std::move(data), nullptr, false);
  auto alias = at::detail::make_tensor<c10::TensorImpl>(
      std::move(storage), c10::DispatchKeySet(c10::DispatchKey::CPU), tensor.dtype());
  alias.unsafeGetTensorImpl()->set_sizes_and_strides(tensor.sizes(), tensor.strides(), tensor.storage_offset());
  return alias;
}

// A host kernel's result as a tensor of the device, without another copy.
inline at::Tensor adopt(const at::Tensor& made, int device) {
  auto block = std::make_unique<Block>(Block{device, made.storage().nbytes(), made.storage().mutable_data(), made});
  c10::Storage storage(
      c10::Storage::use_byte_size_t(), made.storage().nbytes(), counted(std::move(block)), &allocator(), true);
  auto tensor = at::detail::make_tensor<c10::TensorImpl>(
      std::move(storage), c10::DispatchKeySet(kKey), made.dtype());
  tensor.unsafeGetTensorImpl()->set_sizes_and_strides(made.sizes(), made.strides(), made.storage_offset());
  return tensor;
}

// Memory of the host that the device copies from and to by itself.
class PinnedAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t nbytes) override {
    if (nbytes == 0) return {nullptr, nullptr, &release_pinned, c10::Device(c10::kCPU)};
    void* data = std::aligned_alloc(kAlignment, (nbytes + kAlignment - 1) / kAlignment * kAlignment);
    std::lock_guard<std::mutex> held(lock_);
    spans_[data] = nbytes;
    return {data, data, &release_pinned, c10::Device(c10::kCPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release_pinned; }
  void copy_data(void* to, const void* from, size_t nbytes) const override { std::memcpy(to, from, nbytes); }
  bool holds(const void* data) {
    std::lock_guard<std::mutex> held(lock_);
    auto after = spans_.upper_bound(const_cast<void*>(data));
    if (after == spans_.begin()) return false;
    const auto& [first, nbytes] = *std::prev(after);
    return static_cast<const char*>(data) < static_cast<const char*>(first) + nbytes;
  }

 private:
  static void release_pinned(void* data);
  std::mutex lock_;
  std::map<void*, size_t> spans_;
};

inline PinnedAllocator& pinned() {
  static auto* one = new PinnedAllocator();  // never gone: tensors may be freed after everything else
  return *one;
}

inline void PinnedAllocator::release_pinned(void* data) {
  if (data == nullptr) return;
  std::lock_guard<std::mutex> held(pinned().lock_);
  pinned().spans_.erase(data);
  std::free(data);
}

}  // namespace fakechip
