// SPDX-License-Identifier: Apache-2.0
//
// Translates results of a reduced graph (reduce.h) back to the original.
#include <algorithm>

#include "planner/bounds/screen.h"
#include "planner/reduce.h"

namespace reprise::planner {

bool MayReduce(const StepGraph& graph, const Request& request) {
  return request.reduce && request.strategy == Strategy::kAuto &&
         !HasReplayWindows(graph) &&
         request.capabilities.execution == Execution::kFree;
}

bool Reduction::IsWorthIt() const {
  if (!changed_) return false;
  const auto size = [](const StepGraph& graph) {
    return int64_t{graph.op_count()} + graph.storage_count();
  };
  const int64_t all = size(*original_.graph);
  return 50 * (all - size(graph_)) >= all;
}

std::vector<OpId> Reduction::Expand(std::span<const OpId> execs) const {
  std::vector<uint8_t> ran(graph_.ops.size(), 0);
  std::vector<OpId> expanded;
  expanded.reserve(execs.size() + pieces_.size());
  for (const OpId o : execs) {
    for (int32_t i = piece_begin_[o]; i < piece_begin_[o + 1]; ++i) {
      if (!pieces_[i].first_only || ran[o] == 0) {
        expanded.push_back(pieces_[i].op);
      }
    }
    ran[o] = 1;
  }
  return expanded;
}

std::vector<OpId> Reduction::ExpandWindows(
    const std::vector<OpId>& windows) const {
  std::vector<OpId> expanded;
  for (const OpId window : windows) expanded.push_back(Expand(window));
  std::sort(expanded.begin(), expanded.end());
  expanded.erase(std::unique(expanded.begin(), expanded.end()), expanded.end());
  return expanded;
}

OpId Reduction::Expand(OpId op) const {
  // The op that only ends the step corresponds to no op of the original.
  if (piece_begin_[op] == piece_begin_[op + 1]) return original_.op_count - 1;
  // Of the ops that run together, the one that needs the most memory.
  const std::vector<int64_t> sets = WorkingSets(original_);
  OpId most = pieces_[piece_begin_[op]].op;
  for (int32_t i = piece_begin_[op]; i < piece_begin_[op + 1]; ++i) {
    if (sets[pieces_[i].op] > sets[most]) most = pieces_[i].op;
  }
  return most;
}

Infeasible Reduction::Expand(Infeasible infeasible) const {
  const OpId o = infeasible.blocking_op;
  infeasible.windows = ExpandWindows(infeasible.windows);
  std::vector<StorageId> storages;
  std::vector<uint8_t> is_listed(twin_of_.size(), 0);
  for (const StorageId s : infeasible.storages) {
    storages.push_back(storage_[s]);
    is_listed[storage_[s]] = 1;
  }
  for (StorageId s = 0; s < static_cast<StorageId>(twin_of_.size()); ++s) {
    StorageId with = twin_of_[s];
    while (with >= 0 && twin_of_[with] >= 0) with = twin_of_[with];
    if (with >= 0 && is_listed[with] != 0) storages.push_back(s);
  }
  if (o != kNoOp && piece_begin_[o] < piece_begin_[o + 1]) {
    const std::vector<int64_t> sets = WorkingSets(original_);
    infeasible.blocking_op = Expand(o);
    if (sets[infeasible.blocking_op] == infeasible.smallest_budget_bytes) {
      storages = StoragesOf(original_, infeasible.blocking_op);
    }
  }
  std::sort(storages.begin(), storages.end(), [&](StorageId a, StorageId b) {
    const int64_t more = original_.bytes[a] - original_.bytes[b];
    return more != 0 ? more > 0 : a < b;
  });
  infeasible.storages = std::move(storages);
  return infeasible;
}

}  // namespace reprise::planner
