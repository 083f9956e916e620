// What is launched on a device, in order, and the two clocks. An op is computed when it is launched, but is done only when
// the device's clock has come to its end. The host's clock moves when the host waits, which takes no time of the machine,
// and when it says that it works. So figures are the same on a busy machine.
#pragma once

#include "memory.h"

#include <algorithm>

namespace fakechip {

constexpr int64_t kOpTime = 50'000;     // ns of the device
constexpr int64_t kCopyTime = 5'000;    // ns of the device
constexpr int64_t kQueryTime = 10'000;  // ns of the host: asking in vain whether something is done

// Each thread of the host has a clock of its own, since one may wait while another works.
inline thread_local int64_t host_time = 0;

class Queue {
 public:
  // The time at which it will be done.
  int64_t launch(int device, int64_t took) {
    std::lock_guard<std::mutex> held(lock_);
    return run(device, host_time, took);
  }
  // As launch, for a collective, which no rank begins before all ranks can.
  int64_t launch_after(int device, int64_t time, int64_t took) {
    std::lock_guard<std::mutex> held(lock_);
    return run(device, std::max(host_time, time), took);
  }
  // When everything launched so far is done.
  int64_t end(int device) {
    std::lock_guard<std::mutex> held(lock_);
    return std::max(end_[device], host_time);
  }
  // A copy between host and device. What goes to the host arrives when the host's clock has come to the copy's end; until
  // then the host sees all bits set. What comes from the host must not change before.
  void copy(int device, const at::Tensor& from, const at::Tensor& to) {
    const bool arrives = !on_device(to);
    const at::Tensor& memory = arrives ? to : from;
    TORCH_CHECK(memory.is_non_overlapping_and_dense(), "fakechip: a copy that does not wait needs a dense tensor of the host");
    at::Tensor bytes = at::empty_like(memory).copy_(arrives ? host_alias(from) : from);
    if (arrives) {
      std::memset(to.data_ptr(), 0xff, to.nbytes());
    } else {
      host_alias(to).copy_(bytes);
    }
    Copy copy{0, arrives, std::move(bytes), memory};
    std::lock_guard<std::mutex> held(lock_);
    copy.done = run(device, host_time, kCopyTime);
    copies_[device].push_back(std::move(copy));
  }
  bool done(int device, int64_t time) {
    if (time > host_time) return false;
    settle(device);
    return true;
  }
  // The host's clock moves to that time. What made it wait is counted, if it had to.
  void wait(int device, int64_t time, const std::string& what) {
    if (time > host_time) note_wait(what);
    host_time = std::max(host_time, time);
    settle(device);
  }
  void wait_for_all(int device, const std::string& what) { wait(device, end(device), what); }
  // ns that the device has computed and copied.
  int64_t busy(int device) {
    std::lock_guard<std::mutex> held(lock_);
    return busy_[device];
  }

 private:
  struct Copy {
    int64_t done;
    bool arrives;
    at::Tensor bytes, memory;
  };
  int64_t run(int device, int64_t time, int64_t took) {
    busy_[device] += took;
    return end_[device] = std::max(end_[device], time) + took;
  }
  void settle(int device) {
    // To let go of a tensor may take the interpreter's lock, whose holder may be waiting for this one: after it is free.
    std::vector<Copy> settled;
    std::lock_guard<std::mutex> held(lock_);
    auto& copies = copies_[device];
    while (!copies.empty() && copies.front().done <= host_time) {
      settled.push_back(std::move(copies.front()));
      copies.pop_front();
      const Copy& copy = settled.back();  // as bytes: whoever waits may not be in inference mode, as who started it was
      if (copy.arrives) {
        std::memcpy(copy.memory.data_ptr(), copy.bytes.data_ptr(), copy.bytes.nbytes());
      } else {
        TORCH_CHECK(
            std::memcmp(copy.memory.data_ptr(), copy.bytes.data_ptr(), copy.bytes.nbytes()) == 0,
            "fakechip: the host wrote to memory while a copy out of it was under way");
      }
    }
  }
  std::mutex lock_;
  std::array<int64_t, kDevices> end_{}, busy_{};
  std::array<std::deque<Copy>, kDevices> copies_;
};

inline Queue& queue() {
  static Queue one;
  return one;
}

}  // namespace fakechip
