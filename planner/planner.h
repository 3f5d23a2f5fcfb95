// SPDX-License-Identifier: Apache-2.0
//
// The planner's interface: step graph + budget -> plan + certificate.
//
// Minimises the total time of all execs subject to peak <= budget. Every answer
// has the overhead, a proven lower bound, the gap between them, and the
// algorithm that found the plan. An impossible budget is refused, with the op
// that proves it. Pure functions: no I/O, threads, clock or globals; the same
// graph, request and seed give the same plan. Effort is counted in ticks. A
// callback may end the search early; it then returns the best plan so far.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "base/status.h"
#include "planner/model/plan.h"
#include "planner/model/step_graph.h"

namespace reprise::planner {

// Returns the best plan found for the request's budget, or one that is not
// feasible, with the reason. INVALID_ARGUMENT: the graph or the request is
// invalid.
StatusOr<Plan> MakePlan(const StepGraph& graph, const Request& request);

// A proven lower bound of the overhead at a budget, as a fraction of the base
// time; or the proof that nothing fits.
struct Bound {
  double overhead = 0;
  bool impossible = false;
  Infeasible infeasible;
};
StatusOr<Bound> LowerBound(const StepGraph& graph, const Request& request);

// Returns the trade-off curve: `points` budgets from the base peak down to the
// smallest working set, largest first, monotone in peak and time. `on_point`
// gets each point once it is searched, and again if a later search improves it,
// so a receiver keeps the last point of each budget.
struct CurvePoint {
  int64_t budget_bytes = 0;
  bool feasible = false;
  int64_t peak_bytes = 0;
  int64_t time_ns = 0;
  double overhead = 0;
  double bound = 0;
  Infeasible infeasible;
};
StatusOr<std::vector<CurvePoint>> Sweep(
    const StepGraph& graph, const Request& request, int points,
    const std::function<void(const CurvePoint&)>& on_point = {});

}  // namespace reprise::planner
