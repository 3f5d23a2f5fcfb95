// SPDX-License-Identifier: Apache-2.0
//
// What a planned step notes about a model's parameters and buffers, so that it
// can be repeated if it runs out of memory (planned_retry.py). It runs in every
// step, so it must be cheap: a few nanoseconds per tensor here, some hundred in
// Python. And what is released then, before the forward runs again.
#ifndef REPRISE_TORCH_COMPILED_REMEMBERED_H_
#define REPRISE_TORCH_COMPILED_REMEMBERED_H_

#include <ATen/core/Tensor.h>
#include <pybind11/pytypes.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/python_headers.h>

#include <cstdint>
#include <cstring>
#include <memory>
#include <type_traits>
#include <unordered_set>
#include <utility>
#include <vector>

namespace reprise_fast {

// versions(tensors: list) -> bytes: the version counters, as int64.
inline PyObject* Versions(PyObject*, PyObject* tensors) {
  HANDLE_TH_ERRORS
  TORCH_CHECK_TYPE(PyList_CheckExact(tensors), "versions: not a list");
  std::vector<std::int64_t> found;
  found.reserve(static_cast<std::size_t>(PyList_GET_SIZE(tensors)));
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(tensors); ++i)
    found.push_back(THPVariable_Unpack(PyList_GET_ITEM(tensors, i))._version());
  return PyBytes_FromStringAndSize(
      reinterpret_cast<const char*>(found.data()),
      static_cast<Py_ssize_t>(found.size() * sizeof(std::int64_t)));
  END_HANDLE_TH_ERRORS
}

// copy_all(targets: list, sources: list): copies each source into its target,
// which must have the same type and size. CPU tensors are copied without
// changing their version counter: the targets belong to Reprise.
inline PyObject* CopyAll(PyObject*, PyObject* args) {
  HANDLE_TH_ERRORS
  PyObject *targets = nullptr, *sources = nullptr;
  if (!PyArg_ParseTuple(args, "O!O!", &PyList_Type, &targets, &PyList_Type,
                        &sources))
    return nullptr;
  const Py_ssize_t count = PyList_GET_SIZE(targets);
  TORCH_CHECK_VALUE(count == PyList_GET_SIZE(sources),
                    "copy_all: the lists differ in length");
  for (Py_ssize_t i = 0; i < count; ++i) {
    const auto& to = THPVariable_Unpack(PyList_GET_ITEM(targets, i));
    const auto& from = THPVariable_Unpack(PyList_GET_ITEM(sources, i));
    if (to.is_cpu() && from.is_cpu() && to.dtype() == from.dtype() &&
        to.nbytes() == from.nbytes() && to.is_contiguous() &&
        from.is_contiguous() && !from.is_neg() && !from.is_conj() &&
        !from.key_set().has(c10::DispatchKey::Python)) {
      std::memcpy(to.data_ptr(), from.const_data_ptr(), from.nbytes());
    } else {
      const at::NoGradGuard plainly;
      to.copy_(from);
    }
  }
  Py_RETURN_NONE;
  END_HANDLE_TH_ERRORS
}

// Identity and version of gradients, by weak references that keep none alive.
struct Gradients {
  struct One {
    c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl> tensor;
    std::int64_t version;  // -1: no gradient
  };
  std::vector<One> all;
  static constexpr const char* kName = "reprise.gradients";
};

// gradients(parameters: list) -> capsule: identity and version of their
// gradients, for `untouched`. None if no parameter has a gradient.
inline PyObject* TakeGradients(PyObject*, PyObject* parameters) {
  HANDLE_TH_ERRORS
  TORCH_CHECK_TYPE(PyList_CheckExact(parameters), "gradients: not a list");
  auto found = std::make_unique<Gradients>();
  found->all.reserve(static_cast<std::size_t>(PyList_GET_SIZE(parameters)));
  bool any = false;
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(parameters); ++i) {
    const auto& grad =
        THPVariable_Unpack(PyList_GET_ITEM(parameters, i)).grad();
    const std::int64_t version = grad.defined() ? grad._version() : -1;
    found->all.push_back(Gradients::One{
        decltype(Gradients::One::tensor)(grad.getIntrusivePtr()), version});
    any = any || grad.defined();
  }
  if (!any) Py_RETURN_NONE;
  return PyCapsule_New(found.release(), Gradients::kName, [](PyObject* self) {
    delete static_cast<Gradients*>(
        PyCapsule_GetPointer(self, Gradients::kName));
  });
  END_HANDLE_TH_ERRORS
}

// Returns for each parameter whether it still has the gradient that
// `TakeGradients` has found, unmodified.
inline std::vector<bool> Untouched(const std::vector<at::Tensor>& parameters,
                                   const pybind11::capsule& found) {
  const auto& before = found.get_pointer<const Gradients>()->all;
  TORCH_CHECK_VALUE(parameters.size() == before.size(),
                    "untouched: the parameters are not those of `gradients`");
  std::vector<bool> untouched;
  for (std::size_t i = 0; i < before.size(); ++i) {
    const auto& grad = parameters[i].grad();
    const auto& [tensor, version] = before[i];
    untouched.push_back(grad.defined() ? version == grad._version() &&
                                             tensor.lock().get() ==
                                                 grad.unsafeGetTensorImpl()
                                       : version < 0);
  }
  return untouched;
}

// Releases the saved tensors of the graphs that made these tensors, as a
// finished backward would: one that ran out of memory will not run to its end.
// Linear in the size of the graph.
inline void LetGo(const std::vector<at::Tensor>& heads) {
  // torch versions differ: this is a shared_ptr or an intrusive_ptr.
  using NodePtr = std::decay_t<decltype(torch::autograd::Edge::function)>;
  std::vector<NodePtr> todo;
  std::unordered_set<const torch::autograd::Node*> seen;
  for (const at::Tensor& head : heads) todo.push_back(head.grad_fn());
  while (!todo.empty()) {
    const auto node = std::move(todo.back());
    todo.pop_back();
    if (!node || !seen.insert(node.get()).second) continue;
    for (const auto& edge : node->next_edges()) todo.push_back(edge.function);
    node->release_variables();
  }
}

}  // namespace reprise_fast

#endif  // REPRISE_TORCH_COMPILED_REMEMBERED_H_
