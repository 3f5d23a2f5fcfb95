// SPDX-License-Identifier: Apache-2.0
//
// Schedules of a step graph from exact solutions of the chain it resembles.
//
// `FindChain` cuts the forward into stages; what a stage makes, keeps for its
// backward and needs temporarily becomes a Rotor chain (rotor.h) with options:
// keep everything the backward reads; keep the half of these bytes that costs
// most to recompute; keep only the output. With up to 64 stages (neighbours are
// joined) one table answers every budget; longer chains also get Revolve's
// schedule over all their stages, with as many slots as fit. The evaluator
// accounts for what the chain ignores (skips, gradients that accumulate, values
// that may not be recomputed): if a schedule exceeds the budget, the memory
// given to the chain is reduced by the excess, at most four times.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "planner/chains/chain.h"
#include "planner/chains/rotor.h"
#include "planner/model/archive.h"
#include "planner/model/effort.h"
#include "planner/model/flags.h"
#include "planner/model/problem.h"

namespace reprise::planner {

// Makes the chain schedules of one problem for any number of budgets. Models
// and tables are built once; a table of a larger budget answers smaller ones as
// long as its slots are at most twice as large as theirs would be.
class ChainSchedules {
 public:
  explicit ChainSchedules(const Problem& problem);
  ~ChainSchedules();

  // Returns the schedules for this budget that were not returned before; empty
  // if the graph is not a chain of at least two stages, or if none can be run.
  // O(stages^2 slots) ticks for a table, O(ops) for a schedule.
  std::vector<Archive::Point> For(int64_t budget_bytes, Generator& generator,
                                  Effort& effort);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace reprise::planner
