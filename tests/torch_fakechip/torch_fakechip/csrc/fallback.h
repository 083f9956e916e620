// Every op that is no matter of memory alone: refused where its tensors lie in different places, otherwise computed by the
// host's kernel over the same memory, and recorded where a launch is being captured.
#pragma once

#include "queue.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>
#include <ATen/core/stack.h>

namespace fakechip {

using torch::jit::Stack;

inline bool indexes(const std::string& name) {
  static const std::set<std::string> names{"aten::index", "aten::index_put_", "aten::_index_put_impl_", "aten::index_put"};
  return names.count(name) > 0;
}

// Their results' shapes, or their answers, depend on what the device holds.
inline bool reads(const std::string& name, const Stack& arguments) {
  static const std::set<std::string> always{
      "aten::nonzero",      "aten::masked_select",      "aten::_unique", "aten::_unique2", "aten::unique_dim",
      "aten::unique_consecutive", "aten::repeat_interleave", "aten::equal", "aten::is_nonzero", "aten::bincount"};
  if (always.count(name)) return true;
  if (!indexes(name)) return false;
  for (const c10::IValue& index : arguments[1].toListRef())
    if (index.isTensor() && index.toTensor().defined() &&
        (index.toTensor().scalar_type() == at::kBool || index.toTensor().scalar_type() == at::kByte ||
         !on_device(index.toTensor())))  // torch brings it there, and waits for that
      return true;
  return false;
}

template <typename Visit>
void each_tensor(const c10::IValue& value, const Visit& visit) {
  if (value.isTensor()) {
    if (value.toTensor().defined()) visit(value.toTensor());
  } else if (value.isList()) {
    for (const c10::IValue& part : value.toListRef()) each_tensor(part, visit);
  }
}

// The one device that all of the arguments are on; a scalar of the host may come along.
inline int place(const std::string& name, const Stack& arguments) {
  int device = -1;
  bool host = false;
  for (const auto& argument : arguments) {
    if (argument.isDevice() && argument.toDevice().type() == kType && device < 0)
      device = argument.toDevice().has_index() ? argument.toDevice().index() : current;
    each_tensor(argument, [&](const at::Tensor& tensor) {
      if (!on_device(tensor)) {
        host = host || (tensor.dim() > 0 && !(argument.isList() && indexes(name)));
        return;
      }
      TORCH_CHECK(
          device < 0 || device == tensor.device().index(), "fakechip: ", name, " is given tensors of fakechip:", device,
          " and of fakechip:", tensor.device().index());
      device = tensor.device().index();
    });
  }
  TORCH_CHECK(!host, "fakechip: ", name, " is given a tensor of the host beside those of the device");
  return device < 0 ? current : device;
}

inline c10::IValue on_host(const c10::IValue& value) {
  if (value.isTensor()) {
    const auto& tensor = value.toTensor();
    return tensor.defined() && on_device(tensor) ? c10::IValue(host_alias(tensor)) : value;
  }
  if (value.isDevice() && value.toDevice().type() == kType) return c10::Device(c10::kCPU);
  if (value.isTensorList()) {
    c10::List<at::Tensor> moved;
    for (const at::Tensor& part : value.toTensorVector()) moved.push_back(on_device(part) ? host_alias(part) : part);
    return moved;
  }
  if (value.isList()) {
    auto moved = value.toList().copy();
    for (size_t i = 0; i < moved.size(); ++i) moved.set(i, on_host(value.toListRef()[i]));
    return moved;
  }
  return value;
}

// The op, or the one that torch leaves devices to define and that the host has under another name.
inline c10::OperatorHandle host_op(const c10::OperatorHandle& op) {
  if (op.schema().name() != "aten::convolution_overrideable") return op;
  return c10::Dispatcher::singleton().findSchemaOrThrow("aten::convolution", "");
}

// The op over host aliases of its arguments. Whoever is written and has no size yet gets what came of it afterwards.
inline Stack computed(const c10::OperatorHandle& op, const Stack& arguments) {
  const auto& schema = op.schema();
  Stack stack;
  for (size_t i = 0; i < arguments.size(); ++i) {
    const auto* alias = schema.arguments()[i].alias_info();
    const bool unsized = alias && schema.arguments()[i].kwarg_only() && arguments[i].isTensor() && arguments[i].toTensor().numel() == 0;
    stack.push_back(
        unsized ? c10::IValue(at::empty({0}, arguments[i].toTensor().options().device(at::kCPU))) : on_host(arguments[i]));
  }
  const Stack given = stack;
  host_op(op).redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), &stack);
  for (size_t i = 0; i < arguments.size(); ++i)
    if (arguments[i].isTensor() && arguments[i].toTensor().defined() && on_device(arguments[i].toTensor()) &&
        given[i].toTensor().sizes() != arguments[i].toTensor().sizes())
      host_alias(arguments[i].toTensor().resize_(given[i].toTensor().sizes())).copy_(given[i].toTensor());
  return stack;
}

inline at::Tensor on_device_again(const at::Tensor& made, const Stack& arguments, int device) {
  at::Tensor base;
  for (const auto& argument : arguments)
    each_tensor(argument, [&](const at::Tensor& tensor) {
      if (on_device(tensor) && made.storage().data() && tensor.storage().data() == made.storage().data()) base = tensor;
    });
  if (base.defined() && base.dtype() == made.dtype())  // a view
    return base.as_strided(made.sizes(), made.strides(), made.storage_offset());
  if (base.defined()) {  // a view of its bits, as of pairs as complex numbers
    auto view = at::detail::make_tensor<c10::TensorImpl>(
        c10::Storage(base.storage()), c10::DispatchKeySet(kKey), made.dtype());
    view.unsafeGetTensorImpl()->set_sizes_and_strides(made.sizes(), made.strides(), made.storage_offset());
    return view;
  }
  return adopt(made, device);
}

inline c10::IValue result(
    const c10::OperatorHandle& op, size_t i, const c10::IValue& made, const Stack& arguments, int device) {
  const auto& schema = op.schema();
  if (const auto* written = schema.returns()[i].alias_info(); written && written->isWrite())
    for (size_t j = 0; j < arguments.size(); ++j)
      if (const auto* alias = schema.arguments()[j].alias_info(); alias && *alias == *written) return arguments[j];
  if (made.isTensor() && made.toTensor().defined()) return on_device_again(made.toTensor(), arguments, device);
  if (made.isTensorList()) {
    c10::List<at::Tensor> moved;
    for (const at::Tensor& part : made.toTensorVector()) moved.push_back(on_device_again(part, arguments, device));
    return moved;
  }
  return made;
}

inline void refill(const c10::IValue& to, const c10::IValue& from) {
  if (to.isTensor() && to.toTensor().defined()) {
    if (to.toTensor().storage().data() != from.toTensor().storage().data())
      host_alias(to.toTensor()).copy_(from.toTensor());
  } else if (to.isTensorList()) {
    const auto targets = to.toTensorVector(), sources = from.toTensorVector();
    for (size_t i = 0; i < targets.size(); ++i) refill(targets[i], sources[i]);
  }
}

inline void fall_back(const c10::OperatorHandle& op, c10::DispatchKeySet, Stack* stack) {
  const std::string& name = op.schema().name();
  const Stack arguments(stack->end() - op.schema().arguments().size(), stack->end());
  note_op(name);
  const int device = place(name, arguments);
  if (reads(name, arguments)) {
    note_read(name);
    queue().wait_for_all(device, name);
  }
  queue().launch(device, kOpTime);
  const Stack made = computed(op, arguments);
  Stack results;
  for (size_t i = 0; i < made.size(); ++i) results.push_back(result(op, i, made[i], arguments, device));
  if (recording != nullptr) {
    recording->add(device, [op, arguments, results] {
      const Stack again = computed(op, arguments);
      for (size_t i = 0; i < again.size(); ++i) refill(results[i], again[i]);
    });
  }
  torch::jit::drop(*stack, arguments.size());
  for (auto& one : results) stack->push_back(std::move(one));
}

}  // namespace fakechip
