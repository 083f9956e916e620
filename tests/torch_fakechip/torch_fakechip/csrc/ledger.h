// What the host may ask of the device afterwards: what it read behind the device's back, and which ops ran.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/DispatchKeySet.h>
#include <c10/util/Exception.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <sstream>
#include <string>
#include <vector>

namespace fakechip {

// torch's key of the device: PrivateUse1, which Python names, or HPU.
#ifndef FAKECHIP_KEY
#define FAKECHIP_KEY PrivateUse1
#endif

constexpr auto kType = c10::DeviceType::FAKECHIP_KEY;
constexpr auto kKey = c10::DispatchKey::FAKECHIP_KEY;
constexpr int kDevices = 2;

using Counts = std::map<std::string, int64_t>;

struct Ledger {
  std::mutex lock;
  Counts reads;        // implicit ones, which stall the host until the device has caught up
  Counts waits;        // of the host for a device that had not done yet what it was told, those by reads included
  Counts ops;          // each ran on the host's own kernel
  int64_t copies = 0;  // to the host that did not wait for the device
  std::optional<std::set<std::string>> allowed;
  bool refuse_reads = false;
};

inline Ledger& ledger() {
  static Ledger one;
  return one;
}

// What was recorded of a launch: run again in this order.
struct Recording {
  int device = 0;
  std::vector<std::function<void()>> ops;
  void add(int on, std::function<void()> op) {
    device = on;
    ops.push_back(std::move(op));
  }
};
inline thread_local Recording* recording = nullptr;

inline void note_read(const std::string& what) {
  TORCH_CHECK(recording == nullptr, "fakechip: ", what, " reads the device, which cannot be captured");
  std::lock_guard<std::mutex> held(ledger().lock);
  TORCH_CHECK(!ledger().refuse_reads, "fakechip: ", what, " is an implicit read of the device");
  ledger().reads[what]++;
}

inline void note_wait(const std::string& what) {
  std::lock_guard<std::mutex> held(ledger().lock);
  ledger().waits[what]++;
}

inline void note_op(const std::string& name) {
  std::lock_guard<std::mutex> held(ledger().lock);
  const auto& allowed = ledger().allowed;
  TORCH_CHECK(!allowed || allowed->count(name), "fakechip: ", name, " is not among the allowed ops");
  ledger().ops[name]++;
}

inline std::string lines(const Counts& counts) {
  std::lock_guard<std::mutex> held(ledger().lock);
  std::ostringstream text;
  for (const auto& [name, count] : counts) text << name << '\t' << count << '\n';
  return text.str();
}

}  // namespace fakechip
