// SPDX-License-Identifier: Apache-2.0
#include "planner/bounds/window_ceiling.h"

#include <algorithm>

namespace reprise::planner {

WindowCeiling::WindowCeiling(const Problem& problem, int64_t budget_bytes)
    : problem_(problem),
      budget_bytes_(budget_bytes),
      at_most_(problem.op_count, kUnknown) {
  OpId trigger = kNoOp;
  for (OpId o = 0; o < problem.op_count; ++o) {
    if (problem.rules.may_trigger[o] != 0) trigger = o;
    last_trigger_.push_back(trigger);
    int64_t bytes = problem.static_bytes + problem.workspace[o];
    for (const StorageId s : problem.Writes(o)) bytes += problem.bytes[s];
    own_bytes_.push_back(bytes);
  }
}

void WindowCeiling::Lower(const std::vector<OpId>& recomputed) {
  const Versions& versions = problem_.versions;
  const int op_count = problem_.op_count;
  std::vector<uint8_t> again(op_count, 0);
  for (const OpId o : recomputed) again[o] = problem_.rules.may_rerun[o];

  // By value: the last window that needs it; the end of the step counts as one.
  std::vector<OpId> until(versions.value_count(), kNoOp);
  std::vector<OpId> needed(op_count, kNoOp);  // by op of R: its outputs
  for (ValueId v = 0; v < versions.value_count(); ++v) {
    const auto uses = problem_.Uses(v);
    if (!uses.empty()) until[v] = std::min(uses.back(), op_count - 1);
  }
  for (OpId o = op_count; o-- > 0;) {
    if (again[o] == 0) continue;
    for (const ValueId v : versions.Make(o)) {
      needed[o] = std::max(needed[o], until[v]);
    }
    if (needed[o] <= o) continue;
    for (const ValueId u : versions.Need(o)) {
      until[u] = std::max(until[u], needed[o]);
    }
  }

  // Per op, as differences.
  std::vector<int64_t> bytes(op_count + 1, 0), cost(op_count + 1, 0);
  const auto add = [&](std::vector<int64_t>& sums, OpId after, OpId last,
                       int64_t amount) {
    if (last <= after) return;
    sums[after + 1] += amount;
    sums[last + 1] -= amount;
  };
  for (OpId o = 0; o < op_count; ++o) {
    if (again[o] != 0) add(cost, o, needed[o], problem_.rules.rerun_ns[o]);
  }
  for (ValueId v = 0; v < versions.value_count(); ++v) {
    const OpId maker = versions.maker[v];
    const StorageId s = versions.storage[v];
    const int64_t own = problem_.BytesOf(v);
    // The program holds it up to this op, or until the next version is made.
    OpId held = std::max(problem_.rules.held_until[s], maker);
    if (versions.Last(s) != v) {
      held = std::min(held, versions.maker[v + 1]);
    }
    if (again[maker] == 0 || problem_.rules.may_remake[v] == 0) {
      add(bytes, maker, std::max(until[v], held), own);
      continue;
    }
    add(bytes, maker, held, own);
    OpId previous = std::max(maker, held);
    for (const OpId use : problem_.Uses(v)) {
      if (use >= op_count) break;
      if (use <= previous) continue;
      // Counted at its use, and before it as long as nothing may run again.
      const OpId trigger = last_trigger_[use];
      add(bytes, std::max(previous, std::min(trigger, use - 1)), use, own);
      previous = use;
    }
  }
  int64_t held_bytes = 0, added_ns = 0;
  for (OpId o = 0; o < op_count; ++o) {
    held_bytes += bytes[o];
    added_ns += cost[o];
    if (held_bytes + own_bytes_[o] <= budget_bytes_) {
      at_most_[o] = std::min(at_most_[o], added_ns);
    }
  }
}

}  // namespace reprise::planner
