// SPDX-License-Identifier: Apache-2.0
//
// The trade-off curve. One archive serves all budgets: it is filled from the
// smallest budget to the largest and asked afterwards, so the curve is
// monotone by construction, and a bound proven at a larger budget holds at
// every smaller one.
#include <algorithm>

#include "planner/archive.h"
#include "planner/effort.h"
#include "planner/flags.h"
#include "planner/planner.h"
#include "planner/problem.h"
#include "planner/screen.h"
#include "planner/solve.h"

namespace reprise::planner {
namespace {

// Largest first, all different.
std::vector<int64_t> Budgets(int64_t most, int64_t least, int points) {
  std::vector<int64_t> budgets;
  for (int i = 0; i < points; ++i) {
    const __int128 step = static_cast<__int128>(most - least) * i;
    const int64_t budget =
        most - static_cast<int64_t>(step / std::max(1, points - 1));
    if (budgets.empty() || budget < budgets.back()) budgets.push_back(budget);
  }
  return budgets;
}

}  // namespace

StatusOr<std::vector<CurvePoint>> Sweep(
    const StepGraph& graph, const Request& request, int points,
    const std::function<void(const CurvePoint&)>& on_point) {
  RETURN_IF_ERROR(Validate(graph));
  RETURN_IF_ERROR(CheckRequest(request));
  if (points < 1 || points > 10'000) {
    return InvalidArgument("points: must be between 1 and 10000, got " +
                           std::to_string(points));
  }
  const Problem problem = MakeProblem(graph, request.capabilities);
  Generator generator(problem);
  Archive archive;
  AddBase(problem, archive);
  const std::vector<int64_t> budgets =
      Budgets(problem.base.peak_bytes,
              LargestWorkingSet(problem).smallest_budget_bytes, points);

  const int64_t all_ticks =
      request.max_ticks > 0 ? request.max_ticks : DefaultTicks(problem);
  std::vector<Solution> solutions(budgets.size());
  bool interrupted = false;
  for (size_t i = budgets.size(); i-- > 0;) {
    Request at = request;
    at.budget_bytes = budgets[i];
    at.on_progress = {};
    Effort effort(
        std::max<int64_t>(1, all_ticks / static_cast<int64_t>(budgets.size())),
        request.should_stop);
    if (interrupted) continue;
    solutions[i] = Solve(problem, at, generator, archive, effort);
    interrupted = effort.interrupted();
  }

  std::vector<CurvePoint> curve;
  int64_t added_ns = 0;
  for (size_t i = 0; i < budgets.size(); ++i) {
    added_ns = std::max(added_ns, solutions[i].added_ns);
    solutions[i].added_ns = added_ns;
    ASSIGN_OR_RETURN(const Plan plan,
                     PlanFrom(problem, budgets[i], solutions[i], archive));
    CurvePoint point{.budget_bytes = budgets[i],
                     .feasible = plan.feasible,
                     .bound = plan.bound,
                     .infeasible = plan.infeasible};
    if (plan.feasible) {
      point.peak_bytes = plan.evaluation.peak_bytes;
      point.time_ns = plan.evaluation.time_ns;
      point.overhead = plan.overhead;
    }
    curve.push_back(point);
    if (on_point) on_point(curve.back());
  }
  return curve;
}

}  // namespace reprise::planner
