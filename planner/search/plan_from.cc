// SPDX-License-Identifier: Apache-2.0
#include "planner/once/once.h"
#include "planner/search/solve.h"

namespace reprise::planner {

void Describe(const Problem& problem, Plan& plan) {
  const StepGraph& graph = *problem.graph;
  std::vector<uint8_t> ran(problem.op_count, 0);
  std::vector<uint8_t> present(problem.bytes.size(), 0);
  std::vector<int32_t> lives(problem.bytes.size(), 0);
  plan.decisions.assign(problem.bytes.size(), Decision::kSave);
  plan.saved.clear();
  plan.recomputed_ops.clear();
  bool backward = false;
  for (const Entry& entry : plan.schedule) {
    if (entry.kind != Entry::Kind::kExec) {
      if (entry.kind == Entry::Kind::kFree ||
          entry.kind == Entry::Kind::kSent) {
        present[entry.id] = 0;
      } else if (entry.kind == Entry::Kind::kFetch) {
        present[entry.id] = 1;
        plan.decisions[entry.id] = Decision::kOffload;
      }
      continue;
    }
    const OpId o = entry.id;
    if (!backward && graph.ops[o].phase == Phase::kBackward) {
      backward = true;
      for (StorageId s = 0; s < graph.storage_count(); ++s) {
        if (present[s] != 0) plan.saved.push_back(s);
      }
    }
    if (ran[o] != 0) plan.recomputed_ops.push_back(o);
    ran[o] = 1;
    for (const StorageId s : problem.Writes(o)) {
      if (present[s] == 0) ++lives[s];
      present[s] = 1;
    }
    // A second life that is read means recomputed; one that is not read is a
    // by-product of its op. What is both is called offloaded.
    for (const StorageId s : graph.ops[o].reads) {
      if (lives[s] > 1 && plan.decisions[s] == Decision::kSave) {
        plan.decisions[s] = Decision::kRecompute;
      }
    }
  }
}

StatusOr<Plan> PlanFrom(const Problem& problem, int64_t budget_bytes,
                        const Solution& solution, const Archive& archive) {
  const StepGraph& graph = *problem.graph;
  Plan plan;
  plan.base_peak_bytes = problem.base.peak_bytes;
  plan.base_time_ns = problem.base.time_ns;
  plan.bound = Overhead(solution.added_ns, problem.base.time_ns);
  plan.bound_ns = solution.added_ns;
  plan.infeasible = solution.infeasible;
  plan.passes = solution.passes;
  if (archive.Smallest() != nullptr) {
    plan.infeasible.smallest_known_bytes = archive.Smallest()->peak_bytes;
  }
  const Archive::Point* best = archive.Best(budget_bytes);
  if (best == nullptr) {
    plan.undecided = !solution.impossible;
    plan.solver = solution.impossible ? "bound" : "none";
    return plan;
  }
  if (solution.impossible) {
    return Internal("planner: a plan was found for a budget proven impossible");
  }
  plan.schedule =
      WithFrees(graph, best->execs, problem.capabilities.free_policy);
  if (problem.capabilities.execution == Execution::kFree) {
    ASSIGN_OR_RETURN(plan.evaluation,
                     Evaluate(graph, plan.schedule, problem.capabilities));
  } else {
    ASSIGN_OR_RETURN(plan.evaluation, EvaluateOnce(problem, plan.schedule));
  }
  const int64_t added = plan.evaluation.time_ns - problem.base.time_ns;
  if (plan.evaluation.peak_bytes > budget_bytes || added < solution.added_ns) {
    return Internal("planner: the evaluator disagrees with the search");
  }
  plan.feasible = true;
  plan.infeasible = {};
  plan.overhead = Overhead(added, problem.base.time_ns);
  plan.is_optimal = IsProven(problem, added, solution.added_ns);
  plan.solver = best->solver;
  Describe(problem, plan);
  return plan;
}

}  // namespace reprise::planner
