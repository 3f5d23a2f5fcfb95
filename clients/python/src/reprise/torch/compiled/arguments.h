// SPDX-License-Identifier: Apache-2.0
//
// The arguments of a call on the dispatcher's stack: the tensors in them, those
// that it writes, and their device.
#ifndef REPRISE_TORCH_COMPILED_ARGUMENTS_H_
#define REPRISE_TORCH_COMPILED_ARGUMENTS_H_

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>

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

// The tensors that a call is about to write, by its schema.
inline std::vector<at::Tensor> WrittenBy(const c10::OperatorHandle& op,
                                         const Stack& stack) {
  const auto& arguments = op.schema().arguments();
  const IValue* const first = stack.data() + (stack.size() - arguments.size());
  std::vector<at::Tensor> written;
  for (size_t i = 0; i < arguments.size(); ++i) {
    const auto* const alias = arguments[i].alias_info();
    if (alias != nullptr && alias->isWrite()) Flatten(first[i], written);
  }
  return written;
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
