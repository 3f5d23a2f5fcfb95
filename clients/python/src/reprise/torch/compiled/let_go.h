// SPDX-License-Identifier: Apache-2.0
//
// Releases what autograd has saved for a backward that will not run to its end:
// one that ran out of memory, before its forward runs again. Linear in the size
// of the graph.
#ifndef REPRISE_TORCH_COMPILED_LET_GO_H_
#define REPRISE_TORCH_COMPILED_LET_GO_H_

// clang-format off
#include <torch/csrc/python_headers.h>  // before all others
// clang-format on

#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/python_variable.h>

#include <type_traits>
#include <unordered_set>
#include <utility>
#include <vector>

namespace reprise_fast {

// let_go(tensors): releases the saved tensors of the graphs that made these
// tensors, as a finished backward would.
inline PyObject* LetGo(PyObject*, PyObject* tensors) {
  HANDLE_TH_ERRORS
  // torch versions differ: this is a shared_ptr or an intrusive_ptr.
  using NodePtr = std::decay_t<decltype(torch::autograd::Edge::function)>;
  std::vector<NodePtr> todo;
  std::unordered_set<const torch::autograd::Node*> seen;
  PyObject* const items = PySequence_Fast(tensors, "tensors");
  if (items == nullptr) return nullptr;
  for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(items); ++i) {
    PyObject* const item = PySequence_Fast_GET_ITEM(items, i);
    if (THPVariable_Check(item))
      todo.push_back(THPVariable_Unpack(item).grad_fn());
  }
  Py_DECREF(items);
  while (!todo.empty()) {
    const auto node = std::move(todo.back());
    todo.pop_back();
    if (!node || !seen.insert(node.get()).second) continue;
    for (const auto& edge : node->next_edges()) todo.push_back(edge.function);
    node->release_variables();
  }
  Py_RETURN_NONE;
  END_HANDLE_TH_ERRORS
}

}  // namespace reprise_fast

#endif  // REPRISE_TORCH_COMPILED_LET_GO_H_
