// fakechip: a chip of two devices under one of torch's keys, on the host's memory and kernels.
#include "fallback.h"

#include <ATen/EmptyTensor.h>
#include <ATen/detail/HPUHooksInterface.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/native/Resize.h>
#include <ATen/native/TensorFactories.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/library.h>

namespace at::native {
// Defined for all devices, declared in headers that take long to read.
Tensor view(const Tensor&, IntArrayRef);
Tensor _reshape_alias(const Tensor&, IntArrayRef, IntArrayRef);
Tensor as_strided_tensorimpl(const Tensor&, IntArrayRef, IntArrayRef, std::optional<int64_t>);
}  // namespace at::native

namespace fakechip {
namespace {

// ---- devices, their one stream and its events ------------------------------------------------------------------------

struct Event {
  int device;
  int64_t time;  // when everything launched before it is done
};

struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return kType; }
  c10::Device getDevice() const override { return {kType, static_cast<c10::DeviceIndex>(current)}; }
  c10::Device exchangeDevice(c10::Device device) const override {
    const auto before = getDevice();
    setDevice(device);
    return before;
  }
  void setDevice(c10::Device device) const override {
    TORCH_CHECK(device.index() < kDevices, "there is no ", device, "; fakechip has ", kDevices, " devices");
    uncheckedSetDevice(device);
  }
  void uncheckedSetDevice(c10::Device device) const noexcept override {
    if (device.index() >= 0) current = device.index();
  }
  c10::DeviceIndex deviceCount() const noexcept override { return kDevices; }
  c10::Stream getStream(c10::Device device) const override { return c10::Stream(c10::Stream::DEFAULT, device); }
  c10::Stream getNewStream(c10::Device device, int) const override { return getStream(device); }
  c10::Stream exchangeStream(c10::Stream stream) const override { return getStream(stream.device()); }
  void record(void** event, const c10::Stream& stream, const c10::DeviceIndex, const c10::EventFlag) const override {
    if (*event == nullptr) *event = new Event{};
    const int device = stream.device_index();
    *static_cast<Event*>(*event) = Event{device, queue().end(device)};
  }
  void block(void*, const c10::Stream&) const override {}
  // Asking takes time, so whoever asks again and again is told yes in the end.
  bool queryEvent(void* event) const override {
    auto* one = static_cast<Event*>(event);
    if (one == nullptr || queue().done(one->device, one->time)) return true;
    host_time += kQueryTime;
    return false;
  }
  void destroyEvent(void* event, const c10::DeviceIndex) const noexcept override { delete static_cast<Event*>(event); }
  void synchronizeEvent(void* event) const override {
    if (auto* one = static_cast<Event*>(event)) queue().wait(one->device, one->time, "an event");
  }
  bool queryStream(const c10::Stream&) const override { return true; }
  void synchronizeStream(const c10::Stream& stream) const override {
    queue().wait_for_all(stream.device_index(), "a stream");
  }
  void synchronizeDevice(const c10::DeviceIndex device) const override { queue().wait_for_all(device, "a device"); }
};

void resize_bytes(const c10::Storage& storage, size_t nbytes) {
  auto data = allocator().allocate(nbytes);
  if (storage.data()) std::memcpy(data.get(), storage.data(), std::min(nbytes, storage.nbytes()));
  storage.unsafeGetStorageImpl()->set_data_ptr_noswap(std::move(data));
  storage.set_nbytes(nbytes);
}

// What torch asks of a device, under either key.
template <class Interface>
struct HooksOf : Interface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  c10::DeviceIndex deviceCount() const override { return kDevices; }
  c10::DeviceIndex getCurrentDevice() const override { return current; }
  void setCurrentDevice(c10::DeviceIndex index) const override { Guard().setDevice({kType, index}); }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex index) const override {
    return Guard().exchangeDevice({kType, index}).index();
  }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex index) const override { return exchangeDevice(index); }
  c10::Allocator* getPinnedMemoryAllocator() const override { return &pinned(); }
  bool isPinnedPtr(const void* data) const override { return pinned().holds(data); }
  const at::Generator& getDefaultGenerator(c10::DeviceIndex) const override {
    return at::globalContext().defaultGenerator(at::kCPU);
  }
};

struct PrivateUse1Hooks final : HooksOf<at::PrivateUse1HooksInterface> {
  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t nbytes) const override { resize_bytes(storage, nbytes); }
};

struct HPUHooks final : HooksOf<at::HPUHooksInterface> {
  void init() const override {}
  bool hasHPU() const override { return true; }
};

// ---- ops of memory ---------------------------------------------------------------------------------------------------

at::Tensor empty(
    c10::IntArrayRef size, std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
    std::optional<c10::Device> device, std::optional<bool>, std::optional<at::MemoryFormat> format) {
  const c10::DeviceGuard on(device.value_or(Guard().getDevice()));
  return at::detail::empty_generic(
      size, &allocator(), c10::DispatchKeySet(kKey), c10::dtype_or_default(dtype), format);
}

at::Tensor empty_strided(
    c10::IntArrayRef size, c10::IntArrayRef stride, std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
    std::optional<c10::Device> device, std::optional<bool>) {
  const c10::DeviceGuard on(device.value_or(Guard().getDevice()));
  return at::detail::empty_strided_generic(
      size, stride, &allocator(), c10::DispatchKeySet(kKey), c10::dtype_or_default(dtype));
}

const at::Tensor& resize(const at::Tensor& self, c10::SymIntArrayRef asked, std::optional<at::MemoryFormat>) {
  const auto size = C10_AS_INTARRAYREF_SLOW(asked);
  auto* tensor = self.unsafeGetTensorImpl();
  tensor->set_sizes_contiguous(size);
  const size_t needed = (self.numel() + self.storage_offset()) * self.itemsize();
  if (needed > self.storage().nbytes()) {
    const c10::DeviceGuard on(self.device());
    resize_bytes(self.storage(), needed);
  }
  return self;
}

void between_devices(const at::Tensor& from, const at::Tensor& to) {
  queue().launch(to.device().index(), kCopyTime);
  host_alias(to).copy_(host_alias(from));
  if (recording != nullptr)
    recording->add(to.device().index(), [from, to] { host_alias(to).copy_(host_alias(from)); });
}

at::Tensor copy_from(const at::Tensor& from, const at::Tensor& to, bool non_blocking) {
  if (on_device(from) && on_device(to)) {
    between_devices(from, to);
  } else if (on_device(to)) {
    TORCH_CHECK(recording == nullptr, "fakechip: a copy from the host cannot be captured");
    const int device = to.device().index();
    if (non_blocking && from.is_non_overlapping_and_dense() && pinned().holds(from.data_ptr())) {
      queue().copy(device, from, to);
    } else {
      host_alias(to).copy_(from);
      queue().wait(device, queue().launch(device, kCopyTime), "a copy from the host that waits");
    }
  } else if (non_blocking) {
    TORCH_CHECK(recording == nullptr, "fakechip: a copy to the host cannot be captured");
    queue().copy(from.device().index(), from, to);
    std::lock_guard<std::mutex> held(ledger().lock);
    ledger().copies++;
  } else {
    const int device = from.device().index();
    note_read("a copy to the host that waits");
    queue().wait(device, queue().launch(device, kCopyTime), "a copy to the host that waits");
    to.copy_(host_alias(from));
  }
  return to;
}

at::Tensor copy_from_and_resize(const at::Tensor& from, const at::Tensor& to) {
  if (to.sizes() != from.sizes()) to.resize_(from.sizes());
  return copy_from(from, to, false);
}

at::Scalar local_scalar(const at::Tensor& self) {
  note_read("aten::_local_scalar_dense");
  queue().wait_for_all(self.device().index(), "aten::_local_scalar_dense");
  return host_alias(self).item();
}

int64_t sdp_choice(
    const at::Tensor&, const at::Tensor&, const at::Tensor&, const std::optional<at::Tensor>&, double, bool,
    std::optional<double>, bool) {
  return 0;  // torch's definition in plain products
}

// ---- captured launches -----------------------------------------------------------------------------------------------

std::mutex graphs_lock;
std::map<int64_t, std::shared_ptr<Recording>> graphs;

void begin_capture() {
  TORCH_CHECK(recording == nullptr, "fakechip: a capture is under way");
  recording = new Recording();
}

int64_t end_capture() {
  std::shared_ptr<Recording> made(recording);
  recording = nullptr;
  std::lock_guard<std::mutex> held(graphs_lock);
  const int64_t number = graphs.empty() ? 1 : graphs.rbegin()->first + 1;
  graphs[number] = made;
  return number;
}

void replay(int64_t number) {
  std::shared_ptr<Recording> made;
  {
    std::lock_guard<std::mutex> held(graphs_lock);
    made = graphs.at(number);
  }
  queue().launch(made->device, kOpTime * static_cast<int64_t>(made->ops.size()));
  for (const auto& op : made->ops) op();
}

void drop_graph(int64_t number) {
  decltype(graphs)::node_type dropped;  // freed after the lock, as its tensors may wait for the interpreter's
  std::lock_guard<std::mutex> held(graphs_lock);
  dropped = graphs.extract(number);
}

// ---- what the host asks ----------------------------------------------------------------------------------------------

void allow(const std::vector<std::string>& names) {
  std::lock_guard<std::mutex> held(ledger().lock);
  ledger().allowed.emplace(names.begin(), names.end());
}

void allow_all() {
  std::lock_guard<std::mutex> held(ledger().lock);
  ledger().allowed.reset();
}

void reset() {
  std::lock_guard<std::mutex> held(ledger().lock);
  ledger().reads.clear();
  ledger().waits.clear();
  ledger().ops.clear();
  ledger().copies = 0;
}

PrivateUse1Hooks hooks;

}  // namespace

TORCH_LIBRARY_IMPL(aten, FAKECHIP_KEY, m) {
  m.impl("empty.memory_format", &empty);
  m.impl("empty_strided", &empty_strided);
  m.impl("resize_", &resize);
  m.impl("as_strided", &at::native::as_strided_tensorimpl);
  m.impl("view", &at::native::view);
  m.impl("_reshape_alias", &at::native::_reshape_alias);
  m.impl("_copy_from", &copy_from);
  m.impl("_copy_from_and_resize", &copy_from_and_resize);
  m.impl("_local_scalar_dense", &local_scalar);
  m.impl("_fused_sdp_choice", &sdp_choice);
  m.impl("convolution_overrideable", torch::CppFunction::makeFromBoxedFunction<&fall_back>());
}

TORCH_LIBRARY_IMPL(_, FAKECHIP_KEY, m) { m.fallback(torch::CppFunction::makeFromBoxedFunction<&fall_back>()); }

TORCH_LIBRARY(fakechip, m) {
  m.def("reads() -> str", [] { return lines(ledger().reads); });
  m.def("waits() -> str", [] { return lines(ledger().waits); });
  m.def("ops() -> str", [] { return lines(ledger().ops); });
  m.def("copies() -> int", [] { return ledger().copies; });
  m.def("allocated(int index) -> int", [](int64_t index) { return allocated[index].load(); });
  m.def("refuse_reads(bool yes) -> ()", [](bool yes) { ledger().refuse_reads = yes; });
  m.def("allow(str[] names) -> ()", &allow);
  m.def("allow_all() -> ()", &allow_all);
  m.def("reset() -> ()", &reset);
  m.def("current_device() -> int", [] { return int64_t{current}; });
  m.def("set_device(int index) -> ()", [](int64_t index) { Guard().setDevice({kType, static_cast<c10::DeviceIndex>(index)}); });
  m.def("host_time() -> int", [] { return host_time; });
  m.def("work(int time) -> ()", [](int64_t time) { host_time += time; });
  m.def("busy(int index) -> int", [](int64_t index) { return queue().busy(index); });
  m.def("end(int index) -> int", [](int64_t index) { return queue().end(index); });
  m.def("launch_collective(int index, int time) -> ()", [](int64_t index, int64_t time) {
    queue().launch_after(index, time, kOpTime);
  });
  m.def("memory(Tensor tensor) -> Tensor", &host_alias);
  m.def("begin_capture() -> ()", &begin_capture);
  m.def("end_capture() -> int", &end_capture);
  m.def("replay(int graph) -> ()", &replay);
  m.def("drop_graph(int graph) -> ()", &drop_graph);
}

static const bool registered = [] {
  c10::SetAllocator(kType, &allocator());
  if constexpr (kType == c10::DeviceType::PrivateUse1) {
    at::RegisterPrivateUse1HooksInterface(&hooks);
  } else {
    at::HPUHooksRegistry()->Register("HPUHooks", [](at::HPUHooksArgs) -> std::unique_ptr<at::HPUHooksInterface> {
      return std::make_unique<HPUHooks>();
    });
  }
  return true;
}();

}  // namespace fakechip

C10_REGISTER_GUARD_IMPL(FAKECHIP_KEY, fakechip::Guard);
