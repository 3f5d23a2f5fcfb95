// SPDX-License-Identifier: Apache-2.0
//
// The arguments of a call on the dispatcher's stack: the tensors in them, their
// device, and whether Python can be shown them.
#ifndef REPRISE_TORCH_COMPILED_ARGUMENTS_H_
#define REPRISE_TORCH_COMPILED_ARGUMENTS_H_

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include <algorithm>
#include <vector>

#include "cells.h"

namespace reprise_fast {

// Tensors in a value, in order; what is not there is left out.
inline void Flatten(const IValue& value, std::vector<at::Tensor>& to) {
  if (value.isTensor()) {
    if (value.toTensor().defined()) to.push_back(value.toTensor());
  } else if (value.isTensorList()) {
    for (const at::Tensor& t : value.toTensorVector())
      if (t.defined()) to.push_back(t);
  } else if (value.isList()) {
    for (const IValue& v : value.toListRef()) Flatten(v, to);
  }
}

inline bool CanShow(const IValue& v, bool lists) {
  if (v.isNone() || v.isTensor() || v.isInt() || v.isDouble() || v.isBool() ||
      v.isString() || v.isDevice() || v.isComplexDouble())
    return true;
  if (v.isIntList() || v.isDoubleList() || v.isBoolList() || v.isTensorList())
    return true;
  if (!lists || !v.isList()) return false;
  const auto items = v.toListRef();
  return std::all_of(items.begin(), items.end(),
                     [](const IValue& item) { return CanShow(item, false); });
}

// Can this call be recorded, and shown to Python later?
inline bool CanRecord(const c10::OperatorHandle& op, const Stack& stack) {
  const auto count = op.schema().arguments().size();
  return std::all_of(stack.end() - static_cast<long>(count), stack.end(),
                     [](const IValue& v) { return CanShow(v, true); });
}

inline at::Device DeviceOf(const Stack& stack, const c10::OperatorHandle& op) {
  const auto count = op.schema().arguments().size();
  std::vector<at::Tensor> found;
  for (auto v = stack.end() - static_cast<long>(count); v != stack.end(); ++v)
    Flatten(*v, found);
  if (!found.empty()) return found[0].device();
  for (auto v = stack.end() - static_cast<long>(count); v != stack.end(); ++v)
    if (v->isDevice()) return v->toDevice();
  return at::kCPU;
}

}  // namespace reprise_fast

#endif  // REPRISE_TORCH_COMPILED_ARGUMENTS_H_
