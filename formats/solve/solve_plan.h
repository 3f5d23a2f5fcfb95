// SPDX-License-Identifier: Apache-2.0
//
// Makes one plan by several searches of the same step graph, each with its own
// seed, on a number of threads.
//
//   plan   the best by (time, execs, peak, digest of the schedule, search)
//   bound  the best of all searches: each bound holds for every schedule, even
//          that of a search that another one ended, because an interrupted
//          search only reports what it has proven (planner/search/solve.h)
//
// A request that counts ticks is answered by the same number of searches
// regardless of the number of threads, and a search that reaches the target gap
// ends only those after it, so the answer is the same on 1, 2 or 8 threads
// (SolvePlanTest.IsTheSameOnAnyNumberOfThreads). A request that runs until it
// is stopped has one search per thread: the first proves the bound, the others
// improve the plan, and they exchange their results (planner/model/exchange.h).
// The first search to reach the target, with the best plan and the best bound
// of all, ends them together.
//
// The request's callbacks are called by only one thread at a time.
#pragma once

#include "base/status.h"
#include "planner/planner.h"

namespace reprise::formats {

struct SolveOptions {
  int threads = 1;
  // Number of searches for a request that counts ticks; 0: one. Ignored if the
  // request runs until it is stopped.
  int searches = 0;
};

// Like planner::MakePlan. INVALID_ARGUMENT also if threads or searches are out
// of range (1 to 256, 0 to 256).
StatusOr<planner::Plan> SolvePlan(const planner::StepGraph& graph,
                                  const planner::Request& request,
                                  const SolveOptions& options);

}  // namespace reprise::formats
