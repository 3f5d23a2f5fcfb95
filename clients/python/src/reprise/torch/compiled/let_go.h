// SPDX-License-Identifier: Apache-2.0
//
// Releases what autograd has saved for a backward that will not run to its end:
// one that ran out of memory, before its forward runs again. Linear in the size
// of the graph.
#ifndef REPRISE_TORCH_COMPILED_LET_GO_H_
#define REPRISE_TORCH_COMPILED_LET_GO_H_

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/function.h>

#include <type_traits>
#include <unordered_set>
#include <utility>
#include <vector>

namespace reprise_fast {

// Releases the saved tensors of the graphs that made these tensors, as a
// finished backward would.
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

#endif  // REPRISE_TORCH_COMPILED_LET_GO_H_
