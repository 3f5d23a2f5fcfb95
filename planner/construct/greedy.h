// SPDX-License-Identifier: Apache-2.0
//
// Next-use greedy with searched bursts: finds a schedule when memory is tight.
//
// Walks the base order within the budget. When memory would exceed it, evicts
// the value, among those that may go, with the least
//
//   (recompute time)^a / (bytes * (distance to its next base use)^d)
//
// values without a further base use first. If an op's inputs are absent, they
// are recomputed by the first burst of burst.h that fits: all at once, one
// after the other, the cheapest, the smallest. Under tight budgets, the kinds
// of bursts available decide whether a schedule is found at all.
#pragma once

#include <cstdint>
#include <vector>

#include "planner/model/effort.h"
#include "planner/model/problem.h"

namespace reprise::planner {

struct GreedyOptions {
  int64_t budget_bytes = 0;
  int cost_power = 1;      // a: 0 or 1
  int distance_power = 1;  // d: 0, 1 or 2
  int most_states = 3000;  // sets per burst
  int most_execs_per_op = 400;
  int64_t most_ticks = 0;  // 0: as much as the effort allows
};

// Returns the execs of a schedule within the budget, or nothing if the greedy
// gets stuck. The evaluator must confirm the schedule.
std::vector<OpId> NextUseGreedy(const Problem& problem,
                                const GreedyOptions& options, Effort& effort);

}  // namespace reprise::planner
