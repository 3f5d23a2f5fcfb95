// SPDX-License-Identifier: Apache-2.0
//
// Simulated annealing over retention flags: the main search.
//
// Moves, in percent: 45 drop a saved gap that spans the current peak (of
// these 70 `share`, 30 `again`); 30 restore a dropped gap; 12 set a random
// flag; 13 toggle a tail. In a quarter of the moves a second random flip. The
// temperature falls from 10^-2 to 10^-6 of the base time, geometrically in
// ticks. Every candidate is generated in full and given up as soon as its time
// alone is above what would be accepted.
//
// O(execs) per candidate; deterministic for a seed.
#pragma once

#include <string>
#include <vector>

#include "planner/archive.h"
#include "planner/effort.h"
#include "planner/flags.h"
#include "planner/random.h"
#include "planner/score.h"

namespace reprise::planner {

struct LocalSearchOptions {
  int64_t budget_bytes = 0;
  int64_t ticks = 0;  // of this run
  uint64_t seed = 1;
  // Stop once a schedule within the budget takes at most this long.
  int64_t good_enough_ns = 0;
  // First and last temperature, as powers of two of the base time:
  // 2^-hot .. 2^-cold.
  int hot = 7;
  int cold = 20;
  std::string name = "local-search";
};

// Improves `flags`, which end as the best found; schedules within the budget,
// and the smallest above it, feed the archive.
void LocalSearch(const Problem& problem, const LocalSearchOptions& options,
                 Generator& generator, Flags& flags, Archive& archive,
                 Effort& effort);

}  // namespace reprise::planner
