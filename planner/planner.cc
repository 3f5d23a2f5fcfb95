// SPDX-License-Identifier: Apache-2.0
#include "planner/planner.h"

#include "planner/archive.h"
#include "planner/effort.h"
#include "planner/flags.h"
#include "planner/problem.h"
#include "planner/solve.h"

namespace reprise::planner {
StatusOr<Plan> MakePlan(const StepGraph& graph, const Request& request) {
  RETURN_IF_ERROR(Validate(graph));
  RETURN_IF_ERROR(CheckRequest(request));
  const Problem problem = MakeProblem(graph, request.capabilities);
  Effort effort(
      request.max_ticks > 0 ? request.max_ticks : DefaultTicks(problem),
      request.should_stop);
  Generator generator(problem);
  Archive archive;
  AddBase(problem, archive);
  const Solution solution = Solve(problem, request, generator, archive, effort);
  ASSIGN_OR_RETURN(Plan plan,
                   PlanFrom(problem, request.budget_bytes, solution, archive));
  plan.interrupted = effort.interrupted();
  plan.ticks = effort.ticks();
  return plan;
}

StatusOr<Bound> LowerBound(const StepGraph& graph, const Request& request) {
  RETURN_IF_ERROR(Validate(graph));
  RETURN_IF_ERROR(CheckRequest(request));
  const Problem problem = MakeProblem(graph, request.capabilities);
  Bound bound;
  if (problem.base.peak_bytes <= request.budget_bytes) return bound;
  Effort effort(
      request.max_ticks > 0 ? request.max_ticks : DefaultTicks(problem) / 4,
      request.should_stop);
  Certificate certificate(problem, request.budget_bytes, effort);
  if (!certificate.impossible()) {
    CertifyBase(problem, request.budget_bytes, effort.most_ticks(), certificate,
                effort);
  }
  bound.impossible = certificate.impossible();
  bound.infeasible = certificate.infeasible();
  if (bound.impossible) {
    // The share that MakePlan gives to a refusal: both name the same budget.
    const int64_t share =
        (request.max_ticks > 0 ? request.max_ticks : DefaultTicks(problem)) /
        32;
    bound.infeasible = ProveMore(problem, bound.infeasible, share, effort);
  }
  if (!bound.impossible && problem.base.time_ns > 0) {
    bound.overhead = static_cast<double>(certificate.added_ns()) /
                     static_cast<double>(problem.base.time_ns);
  }
  return bound;
}

}  // namespace reprise::planner
