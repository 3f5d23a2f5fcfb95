// SPDX-License-Identifier: Apache-2.0
#include "planner/job_floor.h"

#include <algorithm>

#include "planner/bounds/screen.h"
#include "planner/model/problem.h"
#include "planner/search/solve.h"

namespace reprise::planner {
namespace {

// Returns by op whether anybody may run it again: an op of the forward, or one
// of a backward within it, whose results the forward reads (gradients that are
// differentiated again). An op that reads nothing provides inputs.
std::vector<bool> Repeatable(const StepGraph& graph) {
  std::vector<bool> found(graph.ops.size(), false);
  std::vector<bool> feeds(graph.storages.size(), false);
  for (OpId o = graph.op_count() - 1; o >= 0; --o) {
    const Op& op = graph.ops[o];
    const auto is_fed = [&](StorageId s) { return feeds[s]; };
    if (op.phase != Phase::kForward &&
        std::none_of(op.writes.begin(), op.writes.end(), is_fed)) {
      continue;
    }
    for (const StorageId s : op.reads) feeds[s] = true;
    found[o] = !op.reads.empty();
  }
  return found;
}

// Returns the graph for the floor: what anybody may run again may run again, and
// its outputs are neither pinned nor held.
StepGraph Relaxed(StepGraph graph, const std::vector<uint8_t>& may_rerun) {
  const std::vector<bool> repeatable = Repeatable(graph);
  for (OpId o = 0; o < graph.op_count(); ++o) {
    Op& op = graph.ops[o];
    op.replay_point = true;
    op.replay_windows.clear();
    if (op.kind == OpKind::kView) continue;
    if (repeatable[o]) {
      op.kind = OpKind::kPure;
      op.state_bytes = 0;
      for (const StorageId s : op.writes) {
        graph.storages[s].pinned = false;
        graph.storages[s].release_op = kNoOp;
      }
    } else if (op.phase != Phase::kForward && may_rerun[o] == 0) {
      op.kind = OpKind::kOnce;  // even by hand, a backward runs only once
    }
  }
  return graph;
}

}  // namespace

JobFloor FloorOf(const StepGraph& graph, const Capabilities& executor,
                 int64_t budget_bytes, int64_t max_ticks) {
  const StepGraph relaxed =
      Relaxed(graph, MakeProblem(graph, executor).rules.may_rerun);
  const Problem problem =
      MakeProblem(relaxed, {.seeded_ok = true,
                            .collective_ok = true,
                            .duplicate_outputs = true,
                            .free_policy = FreePolicy::kProgram});
  Infeasible least = LargestWorkingSet(problem);
  if (least.smallest_budget_bytes <= budget_bytes) {
    const std::function<bool()> never;
    Effort effort(max_ticks, never);
    Infeasible asked = least;
    asked.smallest_budget_bytes = budget_bytes;
    const Infeasible proven = ProveMore(problem, asked, max_ticks, effort);
    if (proven.smallest_budget_bytes > budget_bytes) least = proven;
  }
  return {.bytes = least.smallest_budget_bytes, .op = least.blocking_op};
}

std::vector<OpId> NeverAgain(const StepGraph& graph, OpId at) {
  std::vector<OpId> maker(graph.storages.size(), kNoOp);
  std::vector<OpId> last_read(graph.storages.size(), kNoOp);
  for (OpId o = 0; o < graph.op_count(); ++o) {
    for (const StorageId s : graph.ops[o].writes) maker[s] = o;
    for (const StorageId s : graph.ops[o].reads) last_read[s] = o;
  }
  const std::vector<bool> repeatable = Repeatable(graph);
  std::vector<int64_t> stays(graph.ops.size(), 0);
  for (StorageId s = 0; s < graph.storage_count(); ++s) {
    const OpId o = maker[s];
    if (o == kNoOp || o >= at || last_read[s] < at) continue;
    const Op& op = graph.ops[o];
    const bool once =
        op.kind == OpKind::kOnce || op.kind == OpKind::kCollective;
    if (repeatable[o] && (once || graph.storages[s].pinned)) {
      stays[o] += graph.storages[s].bytes;
    }
  }
  std::vector<OpId> found;
  for (OpId o = 0; o < graph.op_count(); ++o) {
    if (stays[o] > 0) found.push_back(o);
  }
  std::stable_sort(found.begin(), found.end(),
                   [&](OpId a, OpId b) { return stays[a] > stays[b]; });
  return found;
}

}  // namespace reprise::planner
