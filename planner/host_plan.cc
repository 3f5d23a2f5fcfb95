// SPDX-License-Identifier: Apache-2.0
#include "planner/host_plan.h"

#include <algorithm>
#include <functional>
#include <map>
#include <utility>

#include "planner/bounds/host_bound.h"
#include "planner/bounds/screen.h"
#include "planner/host/search_host.h"
#include "planner/planner.h"
#include "planner/search/solve.h"

namespace reprise::planner {
namespace {

// Parts of the ticks of the request.
constexpr int64_t kBoundPart = 4, kLargerPart = 24;
constexpr int64_t kNoLimit = int64_t{1} << 60;
// Budgets between this one and what the base order needs, and how often those
// around the best are halved.
constexpr int kBudgets = 8, kHalvings = 3;

// Replaces what a plan says about proofs by what is true with host memory.
void Prove(const Problem& problem, int64_t budget_bytes, const HostBound& bound,
           Plan& plan) {
  plan.bound_ns = bound.added_ns;
  plan.bound = Overhead(bound.added_ns, problem.base.time_ns);
  plan.certificate = {};
  plan.bound_proof = BoundProof::kNone;
  plan.is_optimal = plan.proven_optimal = false;
  plan.undecided = !plan.feasible;
  Infeasible least = LargestWorkingSet(problem);
  least.smallest_known_bytes = plan.infeasible.smallest_known_bytes;
  plan.infeasible = plan.feasible ? Infeasible{} : least;
  if (!plan.feasible) plan.solver = "none";
  if (least.smallest_budget_bytes > budget_bytes) {
    const auto facts =
        verify::ReadFacts(*problem.graph, ExecutorOf(problem.capabilities));
    plan.undecided = false;
    plan.solver = "bound";
    plan.bound_proof = BoundProof::kSolver;
    if (facts.ok()) {
      plan.certificate = CertifyRefusal(*facts, budget_bytes, least, {});
    }
  } else if (bound.added_ns > 0) {
    plan.bound_proof = BoundProof::kSolver;
    plan.certificate = CertifyHost(problem, budget_bytes, bound);
  }
  if (plan.certificate.method != verify::Method::kNone) {
    plan.bound_proof = BoundProof::kChecked;
  }
  if (!plan.feasible) return;
  const int64_t added = plan.evaluation.time_ns - problem.base.time_ns;
  plan.is_optimal = IsProven(problem, added, bound.added_ns);
  if (added <= 0) plan.bound_proof = BoundProof::kChecked;
  plan.proven_optimal =
      plan.is_optimal && plan.bound_proof == BoundProof::kChecked;
}

}  // namespace

StatusOr<Plan> PlanWithHost(const StepGraph& graph, const Request& request) {
  const Problem problem = MakeProblem(graph, request.capabilities);
  const int64_t budget = request.budget_bytes,
                ticks = TicksOf(problem, request);
  const std::function<bool()> stop = [&request] {
    return (request.search_is_over && request.search_is_over()) ||
           (request.should_stop && request.should_stop());
  };
  Effort effort(request.until_stopped ? kNoLimit : 3 * ticks, stop);
  // Copies alone often suffice; then there is nothing to search or to prove.
  HostSearch search(problem, budget, request.seed, effort);
  search.Try(BaseExecs(graph));
  search.Repair(ticks / kLargerPart);
  const bool is_free =
      search.Fits() && search.evaluation().time_ns <= problem.base.time_ns;
  const HostBound bound =
      is_free ? HostBound{}
              : BoundWithHost(problem, budget, ticks / kBoundPart, effort);
  const int64_t bound_ticks = effort.ticks();

  Request alone = request;
  alone.capabilities.link = {};
  alone.until_stopped = false;
  alone.exchange = nullptr;
  alone.part = Part::kAll;
  alone.certify_iterations = 0;
  if (request.on_progress) {
    alone.on_progress = [&](Progress progress) {
      progress.bound = Overhead(bound.added_ns, problem.base.time_ns);
      request.on_progress(progress);
    };
  }
  const auto slack = static_cast<int64_t>(
      request.target_gap * static_cast<double>(problem.base.time_ns));
  const int64_t enough = problem.base.time_ns + bound.added_ns + slack;
  const auto done = [&] {
    return search.Fits() && search.evaluation().time_ns <= enough;
  };
  const auto try_plan = [&](const Plan& plan) {
    return plan.feasible ? search.Try(ExecsOf(plan.schedule)) : Score::kWorst;
  };
  // A plan to fall back on, before time runs out for better ones.
  Request brief = alone;
  brief.on_progress = {};  // only the whole search reports
  brief.max_ticks = done() ? 1 : std::max<int64_t>(1, ticks / kLargerPart);
  ASSIGN_OR_RETURN(Plan plan, MakePlan(graph, brief));
  try_plan(plan);
  // Scores of larger budgets, in units of the way to the base order's peak.
  std::map<int, int64_t> scores;
  constexpr int kUnits = kBudgets << kHalvings;
  const auto try_budget = [&](int unit) -> Status {
    if (unit <= 0 || unit > kUnits || scores.count(unit) != 0 || done() ||
        effort.Over()) {
      return OkStatus();
    }
    brief.budget_bytes =
        budget + static_cast<int64_t>(
                     static_cast<__int128>(problem.base.peak_bytes - budget) *
                     unit / kUnits);
    ASSIGN_OR_RETURN(const Plan larger, MakePlan(graph, brief));
    effort.Spend(larger.ticks);
    scores[unit] = try_plan(larger);
    return OkStatus();
  };
  for (int unit = kUnits; unit > 0; unit -= 1 << kHalvings) {
    RETURN_IF_ERROR(try_budget(unit));
  }
  for (int step = 1 << kHalvings; (step /= 2) > 0 && !scores.empty();) {
    const int best = std::min_element(scores.begin(), scores.end(),
                                      [](const auto& a, const auto& b) {
                                        return a.second < b.second;
                                      })
                         ->first;
    RETURN_IF_ERROR(try_budget(best - step));
    RETURN_IF_ERROR(try_budget(best + step));
  }
  search.Repair(ticks / kLargerPart);
  if (!done()) {
    ASSIGN_OR_RETURN(Plan longer, MakePlan(graph, alone));
    longer.ticks += plan.ticks;
    try_plan(longer);
    const bool is_worse =
        plan.feasible && (!longer.feasible ||
                          plan.evaluation.time_ns < longer.evaluation.time_ns);
    if (!is_worse) plan = std::move(longer);
  }
  // With time left, ever longer.
  for (int64_t round = ticks / 2; !done(); round *= 2) {
    search.Improve(round, enough);
    if (!request.until_stopped || effort.Over()) break;
  }

  const bool better =
      search.Fits() && UsesHost(search.best()) &&
      (!plan.feasible || search.evaluation().time_ns < plan.evaluation.time_ns);
  const int64_t gain = better && plan.feasible ? plan.evaluation.time_ns -
                                                     search.evaluation().time_ns
                                               : 0;
  for (PassLine& line : plan.passes) line.bound_gain_ns = 0;
  plan.passes.push_back({.name = "host-bound",
                         .runs = 1,
                         .ticks = bound_ticks,
                         .bound_gain_ns = bound.added_ns});
  plan.passes.push_back({.name = "host",
                         .runs = 1,
                         .ticks = effort.ticks() - bound_ticks,
                         .plan_gain_ns = gain});
  if (better) {
    plan.feasible = true;
    plan.schedule = search.best();
    plan.evaluation = search.evaluation();
    plan.solver = "host";
    plan.overhead = Overhead(plan.evaluation.time_ns - problem.base.time_ns,
                             problem.base.time_ns);
    Describe(problem, plan);
  }
  if (!plan.feasible && !search.best().empty()) {
    int64_t& smallest = plan.infeasible.smallest_known_bytes;
    const int64_t found = search.evaluation().peak_bytes;
    smallest = smallest == 0 ? found : std::min(smallest, found);
  }
  if (plan.feasible &&
      plan.evaluation.time_ns - problem.base.time_ns < bound.added_ns) {
    return Internal("planner: a plan is faster than what was proven");
  }
  Prove(problem, budget, bound, plan);
  plan.ticks += effort.ticks();
  plan.interrupted = plan.interrupted || effort.interrupted();
  return plan;
}

}  // namespace reprise::planner
