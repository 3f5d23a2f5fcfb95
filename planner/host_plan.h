// SPDX-License-Identifier: Apache-2.0
//
// Plans for executors with a link to host memory: recomputation and copies in
// one schedule.
//
//   base      nothing is recomputed; what exceeds the budget moves to the host.
//             Where the link keeps up, that is the answer. Where the budget lacks
//             little even so, what cannot move is recomputed
//   larger    plans without host memory for this budget and larger ones; what
//             exceeds the budget moves to the host. A plan for a larger budget
//             recomputes what is cheapest per byte, and the link costs the same
//             for every byte, so between these two is where it should begin.
//             Where the best of them are, budgets in between are tried
//   alone     the plan without host memory, as if there were none: the answer
//             is never worse, unless time ran out before
//   anneal    the best of these (host/search_host.h)
//
// The bound is that of bounds/host_bound.h; what the searches without host
// memory prove is not true here. A refusal names an op whose working set alone
// is too large.
#pragma once

#include "base/status.h"
#include "planner/model/plan.h"

namespace reprise::planner {

// MakePlan for a request whose executor has host memory; both must be valid.
// About two and a half times the ticks of the request.
StatusOr<Plan> PlanWithHost(const StepGraph& graph, const Request& request);

}  // namespace reprise::planner
