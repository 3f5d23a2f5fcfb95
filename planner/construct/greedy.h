// SPDX-License-Identifier: Apache-2.0
//
// Next-use greedy with searched bursts: finds a schedule when memory is tight.
//
// Walk the base order within the budget. When memory would exceed it, evict
// the evictable value with the least
//
//   (recompute time)^a / (bytes * (distance to its next base use)^d)
//
// values without a further base use first. When an op's inputs are absent, the
// burst that re-creates them is the first of burst.h's that fits: all at once,
// one after the other, the cheapest, the smallest. Which of them there is
// decides, under tight budgets, whether there is a schedule at all.
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
  int64_t most_ticks = 0;  // 0: as the effort allows
};

// The execs of a schedule within the budget, or nothing where the greedy is
// stuck. The evaluator has the last word.
std::vector<OpId> NextUseGreedy(const Problem& problem,
                                const GreedyOptions& options, Effort& effort);

}  // namespace reprise::planner
