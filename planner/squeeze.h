// SPDX-License-Identifier: Apache-2.0
//
// Schedules for budgets so tight that nothing else finds one.
//
// Only first runs have to follow the base order; re-runs may come in any. So
// if some list of execs in any order reaches the ends of the graph within the
// budget (a *pebbling*), every op can run within it as well: before each base
// op, the part of the pebbling that leads to it runs again. That takes at most
// ops x length of the pebbling execs, and most of it goes again once values
// are held wherever memory allows (HoldMore in construct.h).
//
// The pebbling is found by annealing over lists in any order (free_order.h):
// the energy is the sum over execs of the square of the bytes above the
// budget, plus a price per exec that falls with the temperature. A peak has
// no slope; this sum has one almost everywhere.
#pragma once

#include <cstdint>
#include <vector>

#include "planner/effort.h"
#include "planner/free_order.h"
#include "planner/problem.h"
#include "planner/random.h"

namespace reprise::planner {

// Looks for a pebbling within a budget, some ticks at a time. The problem must
// be one that FreeOrder applies to, and outlive it.
class Pebbler {
 public:
  Pebbler(const Problem& problem, int64_t budget_bytes, uint64_t seed);

  // A list of execs in any order within the budget; nothing where the ticks
  // end first. Goes on from the best list of earlier calls.
  std::vector<OpId> Search(int64_t ticks, Effort& effort);

 private:
  FreeOrder list_;
  Random random_;
  const int32_t most_execs_;
  std::vector<OpId> best_;
  int64_t least_over_ = 0;
};

// The execs of a schedule in base order whose bursts are parts of the
// pebbling; nothing where that takes more ticks than `most_ticks` (0: as the
// effort allows). O(ops x length of the pebbling) at most.
std::vector<OpId> InBaseOrder(const Problem& problem,
                              const std::vector<OpId>& pebbling, Effort& effort,
                              int64_t most_ticks = 0);

}  // namespace reprise::planner
