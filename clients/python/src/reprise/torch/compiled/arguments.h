// SPDX-License-Identifier: Apache-2.0
//
// Reads the arguments of a call from the dispatcher's stack: which tensors they
// contain, which of those the call writes, and on which device they are.
#ifndef REPRISE_TORCH_COMPILED_ARGUMENTS_H_
#define REPRISE_TORCH_COMPILED_ARGUMENTS_H_

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include <string>
#include <vector>

#include "cells.h"

namespace reprise_fast {

// Appends the tensors contained in `value` to `to`, in order. Undefined tensors
// are skipped.
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

// Returns whether an op is a batch norm that may update running statistics, of
// which its schema does not speak (ops._STATISTICS). They are its fourth and
// fifth argument; the sixth says whether it does.
inline bool HasStatistics(const c10::OperatorHandle& op) {
  const std::string& name = op.operator_name().name;
  return name == "aten::native_batch_norm" ||
         name == "aten::_native_batch_norm_legit" ||
         name == "aten::cudnn_batch_norm" || name == "aten::miopen_batch_norm";
}

// Returns whether a call of an op may write an argument.
inline bool MayWrite(const c10::OperatorHandle& op) {
  return op.schema().is_mutable() || HasStatistics(op);
}

// Returns the tensors that a call is about to write, according to its schema,
// and running statistics.
inline std::vector<at::Tensor> WrittenBy(const c10::OperatorHandle& op,
                                         const Stack& stack) {
  const auto& arguments = op.schema().arguments();
  const IValue* const first = stack.data() + (stack.size() - arguments.size());
  std::vector<at::Tensor> written;
  for (size_t i = 0; i < arguments.size(); ++i) {
    const auto* const alias = arguments[i].alias_info();
    if (alias != nullptr && alias->isWrite()) Flatten(first[i], written);
  }
  constexpr size_t kStatistics = 3;
  if (HasStatistics(op) && arguments.size() > kStatistics + 2 &&
      first[kStatistics + 2].isBool() && first[kStatistics + 2].toBool()) {
    Flatten(first[kStatistics], written);
    Flatten(first[kStatistics + 1], written);
  }
  return written;
}

// Returns the device of the call's first tensor argument; without one, the
// device that is passed as an argument; without that, the CPU.

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
