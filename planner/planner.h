// SPDX-License-Identifier: Apache-2.0
//
// The planner's front door: step graph + budget -> plan + certificate.
//
// Minimise the total time of all execs subject to peak <= budget. Every answer
// carries the overhead, a proven lower bound, the gap between them and the
// algorithm that found it; a budget that is impossible is refused with the op
// that proves it. Pure functions: no I/O, threads, clock or globals; the same
// graph, request and seed give the same plan. Effort is counted in ticks, and
// a callback may end the search early: it then returns the best plan so far.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "base/status.h"
#include "planner/model/plan.h"
#include "planner/model/step_graph.h"

namespace reprise::planner {

// INVALID_ARGUMENT: the graph is not valid or the request is not.
StatusOr<Plan> MakePlan(const StepGraph& graph, const Request& request);

// Proven lower bound of the overhead at a budget, as a fraction; or the proof
// that nothing fits.
struct Bound {
  double overhead = 0;
  bool impossible = false;
  Infeasible infeasible;
};
StatusOr<Bound> LowerBound(const StepGraph& graph, const Request& request);

// The trade-off curve: `points` budgets from the base peak down to the
// smallest working set, largest first, monotone in peak and time. Each point
// is streamed once it is searched; one that a later search improves comes
// again, so a receiver keeps the last of each budget.
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
