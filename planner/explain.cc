// SPDX-License-Identifier: Apache-2.0
//
// What a plan does with each storage, and why, in one word:
//
//   pinned          the executor must keep it
//   not_repeatable  nobody may run its op again
//   small           under a thousandth of the peak: not worth a decision
//   no_gain         not alive at the peak without a plan: keeping it is free
//   cheap           recomputed: its time per byte is below the price of memory
//   costly          saved: its time per byte is above it
#include <algorithm>

#include "planner/planner.h"
#include "planner/problem.h"

namespace reprise::planner {
namespace {

// By storage: present while the entry at this position runs.
std::vector<uint8_t> AliveAt(const StepGraph& graph,
                             std::span<const Entry> schedule, int32_t entry) {
  std::vector<uint8_t> alive(graph.storage_count(), 0);
  for (const Lifetime& life : Lifetimes(graph, schedule)) {
    if (life.born <= entry && entry < life.dead) alive[life.storage] = 1;
  }
  return alive;
}

std::string Why(const Problem& problem, StorageId s,
                const StorageExplanation& explained, int64_t peak_bytes) {
  const ValueId last = problem.versions.Last(s);
  if (problem.graph->storages[s].pinned) return "pinned";
  if (explained.decision == Decision::kRecompute) return "cheap";
  if (problem.rules.may_remake[last] == 0) return "not_repeatable";
  if (problem.bytes[s] < peak_bytes / 1000) return "small";
  return explained.alive_at_base_peak ? "costly" : "no_gain";
}

}  // namespace

std::vector<StorageExplanation> Explain(const StepGraph& graph,
                                        const Plan& plan,
                                        const Capabilities& capabilities) {
  const Problem problem = MakeProblem(graph, capabilities);
  const Schedule base = BaseSchedule(graph, capabilities.free_policy);
  const std::vector<uint8_t> at_base =
      AliveAt(graph, base, problem.base.peak_entry);
  const std::vector<uint8_t> at_plan =
      AliveAt(graph, plan.schedule, plan.evaluation.peak_entry);
  std::vector<int32_t> lives(graph.storage_count(), 0);
  for (const Lifetime& life : Lifetimes(graph, plan.schedule)) {
    ++lives[life.storage];
  }

  std::vector<StorageExplanation> result;
  for (StorageId s = 0; s < graph.storage_count(); ++s) {
    StorageExplanation explained;
    explained.storage = s;
    if (s < static_cast<StorageId>(plan.decisions.size())) {
      explained.decision = plan.decisions[s];
    }
    const Versions& versions = problem.versions;
    explained.made_by = versions.maker[versions.first_value[s]];
    explained.last_read_by = explained.made_by;
    for (ValueId v = versions.first_value[s]; v <= versions.Last(s); ++v) {
      explained.recompute_ns += problem.rules.rerun_ns[versions.maker[v]];
      for (const OpId use : problem.Uses(v)) {
        if (use == problem.op_count) continue;
        explained.last_read_by = std::max(explained.last_read_by, use);
      }
    }
    explained.times_recomputed = std::max(0, lives[s] - 1);
    explained.alive_at_base_peak = at_base[s] != 0;
    explained.alive_at_peak = at_plan[s] != 0;
    explained.why = Why(problem, s, explained, problem.base.peak_bytes);
    result.push_back(std::move(explained));
  }
  return result;
}

}  // namespace reprise::planner
