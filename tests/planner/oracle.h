// SPDX-License-Identifier: Apache-2.0
//
// The oracle: the best schedule of a small step graph by brute force.
//
// Dijkstra over states (ops run, versions present, lives, runs, generator
// states stored) with one arc per possible exec and per possible free, guided
// by the time of the first runs that must still come (A*). It has its own
// reading of the rules of `planner/model/evaluate.h` and shares no code with
// the planner beyond the step graph, so that the two can disagree. Practical to
// about 9 ops; to about 6 with a link to host memory, where the copies under
// way, and for how much longer, belong to the state.
#pragma once

#include <cstdint>
#include <optional>

#include "planner/model/evaluate.h"

namespace reprise::planner {

struct OracleAnswer {
  int64_t time_ns = 0;
  Schedule schedule;
};

// Returns nothing if no schedule stays within the budget. With a link, all
// copies together must take less than 120 ns each way. If `most_states` is
// given and more are reached, it is set to -1, and nothing is returned.
std::optional<OracleAnswer> BestSchedule(const StepGraph& graph,
                                         const Capabilities& capabilities,
                                         int64_t budget_bytes,
                                         int64_t* most_states = nullptr);

}  // namespace reprise::planner
