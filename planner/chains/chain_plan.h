// SPDX-License-Identifier: Apache-2.0
//
// Schedules of a step graph from exact solutions of the chain it resembles.
//
// `FindChain` cuts the forward into stages; what a stage makes, keeps for its
// backward and needs on the way becomes a Rotor chain (rotor.h) with options:
// keep everything the backward reads; keep half of these bytes, the costliest
// to make again; keep the output only. Up to 64 stages (neighbours are joined)
// the table answers every budget; longer chains also get Revolve's schedule
// over all their stages, with as many slots as fit. What the chain does not see
// (skips, gradients that pile up, values nobody may make again) the evaluator
// does: the memory given to the chain is lowered by what the schedule exceeds
// the budget, at most four times.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "planner/chains/chain.h"
#include "planner/chains/rotor.h"
#include "planner/model/effort.h"
#include "planner/model/flags.h"
#include "planner/model/problem.h"

namespace reprise::planner {

struct ChainSchedule {
  int64_t peak_bytes = 0;
  int64_t time_ns = 0;
  std::vector<OpId> execs = {};
  std::string solver = {};
};

// ChainSchedules: those of one problem, at any number of budgets. Models and
// tables are made once; a table of a larger budget answers smaller ones while
// its slots are at most twice as large as theirs would be.
class ChainSchedules {
 public:
  explicit ChainSchedules(const Problem& problem);
  ~ChainSchedules();

  // The schedules tried for this budget, without those returned before; empty
  // where the graph is no chain of at least two stages or none can be run.
  // O(stages^2 slots) ticks for a table, O(ops) for a schedule.
  std::vector<ChainSchedule> For(int64_t budget_bytes, Generator& generator,
                                 Effort& effort);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace reprise::planner
