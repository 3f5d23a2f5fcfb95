// SPDX-License-Identifier: Apache-2.0
//
// One plan from several searches of the same step graph, each with a seed of
// its own, on a number of threads.
//
//   plan   the best by (time, execs, peak, digest of the schedule, search)
//   bound  the best of all: each holds for every schedule, that of a search
//          which another one ended too, since an interrupted search says only
//          what it has proven (planner/search/solve.h)
//
// Requests that count ticks are answered by the same number of searches
// whatever the number of threads, and one that reaches the target gap ends
// only those after it, so that the answer is the same on 1, 2 or 8 threads
// (SolvePlanTest.IsTheSameOnAnyNumberOfThreads). Requests that run until they
// are stopped have one search per thread: the first proves, the others improve,
// and they tell each other what they find (planner/model/exchange.h). The first
// to reach the target with the best plan and the best bound of all ends them
// together.
//
// The request's callbacks are called by one thread at a time.
#pragma once

#include "base/status.h"
#include "planner/planner.h"

namespace reprise::formats {

struct SolveOptions {
  int threads = 1;
  // Of a request that counts ticks; 0: one. Not looked at where the request
  // runs until it is stopped.
  int searches = 0;
};

// As planner::MakePlan. INVALID_ARGUMENT also where threads or searches are
// out of range (1 to 256, 0 to 256).
StatusOr<planner::Plan> SolvePlan(const planner::StepGraph& graph,
                                  const planner::Request& request,
                                  const SolveOptions& options);

}  // namespace reprise::formats
