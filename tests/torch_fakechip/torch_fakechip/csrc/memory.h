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

namespace fakechip {

constexpr size_t kBytes = size_t{256} << 20;  // of each device
constexpr size_t kAlignment = 64;

inline thread_local int current = 0;
inline std::array<std::atomic<int64_t>, kDevices> live{}, allocated{};

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
  live[block->device] += block->nbytes;
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
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex) override { return {}; }
  void resetAccumulatedStats(c10::DeviceIndex) override {}
  void resetPeakStats(c10::DeviceIndex) override {}
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
      std::move(storage), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), made.dtype());
  tensor.unsafeGetTensorImpl()->set_sizes_and_strides(made.sizes(), made.strides(), made.storage_offset());
  return tensor;
}

// Copies to the host that nobody has waited for: until then the host sees all bits set, as if they were under way.
class Copies {
 public:
  void start(const at::Tensor& from, const at::Tensor& to) {
    const int device = from.device().index();
    TORCH_CHECK(to.is_non_overlapping_and_dense(), "fakechip: a copy that does not wait needs a dense tensor to go to");
    Copy copy{0, at::empty_like(to).copy_(host_alias(from)), to};
    std::memset(to.data_ptr(), 0xff, to.nbytes());
    std::lock_guard<std::mutex> held(lock_);
    copy.number = ++started_[device];
    waiting_[device].push_back(std::move(copy));
  }
  int64_t started(int device) {
    std::lock_guard<std::mutex> held(lock_);
    return started_[device];
  }
  void finish(int device, int64_t until) {
    std::lock_guard<std::mutex> held(lock_);
    auto& queue = waiting_[device];
    for (; !queue.empty() && queue.front().number <= until; queue.pop_front()) {
      const Copy& copy = queue.front();  // as bytes: whoever waits may not be in inference mode, as who started it was
      std::memcpy(copy.to.data_ptr(), copy.from.data_ptr(), copy.to.nbytes());
    }
  }
  void finish(int device) { finish(device, INT64_MAX); }
  bool there(int device, int64_t number) {
    std::lock_guard<std::mutex> held(lock_);
    return waiting_[device].empty() || waiting_[device].front().number > number;
  }

 private:
  struct Copy {
    int64_t number;
    at::Tensor from, to;
  };
  std::mutex lock_;
  std::array<int64_t, kDevices> started_{};
  std::array<std::deque<Copy>, kDevices> waiting_;
};

inline Copies& copies() {
  static Copies one;
  return one;
}

}  // namespace fakechip
