// SPDX-License-Identifier: Apache-2.0
#include "planner/model/problem.h"

#include <algorithm>
#include <cassert>

namespace reprise::planner {
namespace {

// Fills the uses of every value, and the flag ranges.
void AddUses(Problem& problem) {
  const Versions& versions = problem.versions;
  const int value_count = versions.value_count();
  std::vector<int32_t> count(value_count, 0);
  for (const ValueId v : versions.need) ++count[v];
  for (const ValueId v : problem.end_need) ++count[v];
  problem.use_begin.assign(1, 0);
  problem.flag_begin.assign(1, 0);
  for (ValueId v = 0; v < value_count; ++v) {
    problem.use_begin.push_back(problem.use_begin[v] + count[v]);
    problem.flag_begin.push_back(problem.flag_begin[v] + count[v] + 1);
    count[v] = 0;
  }
  problem.uses.resize(problem.use_begin[value_count]);
  for (OpId o = 0; o < problem.op_count; ++o) {
    for (const ValueId v : versions.Need(o)) {
      problem.uses[problem.use_begin[v] + count[v]++] = o;
      problem.need_flag.push_back(problem.flag_begin[v] + count[v]);
    }
  }
  for (const ValueId v : problem.end_need) {
    problem.uses[problem.use_begin[v] + count[v]++] = problem.op_count;
  }
}

// Fills the flags of every gap and tail.
void AddFlags(Problem& problem) {
  for (ValueId v = 0; v < problem.versions.value_count(); ++v) {
    OpId from = problem.versions.maker[v];
    for (const OpId use : problem.Uses(v)) {
      problem.flag_value.push_back(v);
      problem.flag_from.push_back(from);
      problem.flag_to.push_back(use);
      // A gap may be discarded only if re-runs may come before the op that
      // closes it.
      problem.flag_fixed.push_back(
          !problem.rules.may_remake[v] || !problem.rules.may_trigger[use] ||
          !problem.rules.IsInWindow(problem.versions.maker[v], use));
      from = use;
    }
    problem.flag_value.push_back(v);
    problem.flag_from.push_back(from);
    problem.flag_to.push_back(problem.op_count + 1);
    problem.flag_fixed.push_back(!problem.rules.may_remake[v]);
  }
}

// Lists, per op, the storages that the program holds until it has run.
void AddReleases(Problem& problem) {
  const int op_count = problem.op_count;
  problem.released_begin.assign(op_count + 1, 0);
  for (const OpId o : problem.rules.held_until) {
    if (o != kNoOp) ++problem.released_begin[o + 1];
  }
  for (OpId o = 0; o < op_count; ++o) {
    problem.released_begin[o + 1] += problem.released_begin[o];
  }
  problem.released.resize(problem.released_begin[op_count]);
  std::vector<int32_t> next(problem.released_begin.begin(),
                            problem.released_begin.end() - 1);
  for (size_t s = 0; s < problem.rules.held_until.size(); ++s) {
    const OpId o = problem.rules.held_until[s];
    if (o != kNoOp) problem.released[next[o]++] = static_cast<StorageId>(s);
  }
}

}  // namespace

int32_t Problem::FlagAt(ValueId v, OpId at) const {
  const auto all = Uses(v);
  const auto next = std::lower_bound(all.begin(), all.end(), at);
  return flag_begin[v] + static_cast<int32_t>(next - all.begin());
}

Problem MakeProblem(const StepGraph& graph, const Capabilities& capabilities) {
  Problem problem;
  problem.graph = &graph;
  problem.capabilities = WithExecution(capabilities);
  problem.versions = WalkVersions(graph);
  problem.rules = MakeRules(graph, problem.versions, capabilities);
  problem.op_count = graph.op_count();
  problem.static_bytes = graph.static_bytes;
  problem.first_backward = graph.op_count();
  problem.write_begin.push_back(0);
  for (const Storage& storage : graph.storages) {
    problem.bytes.push_back(storage.bytes);
  }
  for (OpId o = 0; o < graph.op_count(); ++o) {
    const Op& op = graph.ops[o];
    problem.workspace.push_back(op.workspace_bytes);
    problem.time_ns.push_back(op.time_ns);
    problem.writes.insert(problem.writes.end(), op.writes.begin(),
                          op.writes.end());
    problem.write_begin.push_back(static_cast<int32_t>(problem.writes.size()));
    if (op.phase == Phase::kBackward && problem.first_backward > o) {
      problem.first_backward = o;
    }
  }
  problem.required.assign(graph.storage_count(), 0);
  for (const StorageId s : graph.required) {
    problem.required[s] = 1;
    problem.end_need.push_back(problem.versions.Last(s));
  }
  AddUses(problem);
  AddFlags(problem);
  AddReleases(problem);

  std::vector<MemoryPoint> profile;
  const Schedule base = BaseSchedule(graph, capabilities.free_policy);
  StatusOr<Evaluation> evaluation =
      Evaluate(graph, base, capabilities, &profile);
  assert(evaluation.ok() && "the base schedule of a valid graph is valid");
  problem.base = *evaluation;
  for (const MemoryPoint& point : profile) {
    problem.base_bytes.push_back(point.bytes);
  }
  return problem;
}

StatusOr<Evaluation> EvaluateExecs(const Problem& problem,
                                   const std::vector<OpId>& execs) {
  const Capabilities& can = problem.capabilities;
  return Evaluate(*problem.graph,
                  WithFrees(*problem.graph, execs, can.free_policy), can);
}

bool IsPlain(const Problem& problem) {
  for (OpId o = 0; o < problem.op_count; ++o) {
    if (!problem.graph->ops[o].mutates.empty()) return false;
    if (problem.rules.may_rerun[o] != 0 &&
        problem.graph->ops[o].state_bytes > 0) {
      return false;
    }
  }
  return std::all_of(problem.rules.held_until.begin(),
                     problem.rules.held_until.end(),
                     [](OpId held) { return held == kNoOp; });
}

}  // namespace reprise::planner
