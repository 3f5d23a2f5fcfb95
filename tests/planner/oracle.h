// SPDX-License-Identifier: Apache-2.0
//
// The oracle: the best schedule of a small step graph by brute force.
//
// Dijkstra over states (ops run, versions present, lives, runs, generator
// states stored) with one arc per possible exec and per possible free, guided
// by the time of the first runs that must still come (A*). It has its own
// reading of the rules of `planner/model/evaluate.h` and shares no code with
// the planner beyond the step graph, so that the two can disagree. Practical to
// about 9 ops.
#pragma once

#include <cstdint>
#include <optional>

#include "planner/model/evaluate.h"

namespace reprise::planner {

struct OracleAnswer {
  int64_t time_ns = 0;
  Schedule schedule;
};

// Returns nothing if no schedule stays within the budget.
std::optional<OracleAnswer> BestSchedule(const StepGraph& graph,
                                         const Capabilities& capabilities,
                                         int64_t budget_bytes);

}  // namespace reprise::planner
