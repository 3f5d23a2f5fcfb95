// SPDX-License-Identifier: Apache-2.0
//
// Plans by name: what people know, for comparison and as candidates of the
// portfolio, which is never worse than any of them at the same budget.
//
//   save-all     the base order
//   memory       keep O(sqrt n): of the chain's cut positions, keep the values
//                that cross one in every so many bytes and recompute the rest
//                segment by segment (Chen et al., 2016; over articulation
//                points as in the gradient-checkpointing package, 2018). Six
//                segment sizes around sqrt(boundary * largest stage) and the
//                square root of the stages are tried; the one with the smallest
//                peak is it
//   speed        keep the outputs of convolutions and matrix products
//   collection   keep what the user marked (`Storage::pinned`)
//   per-block    recompute every repeated module (`layers.3`), keeping what
//                leaves it: what everybody does today. Without module names,
//                every stage of the chain
//
// All of them recompute in the backward only, each value once, when it is first
// needed. Where a graph has no backward each of them is the base order.
#pragma once

#include <string_view>
#include <vector>

#include "base/status.h"
#include "planner/model/flags.h"
#include "planner/model/plan.h"
#include "planner/model/problem.h"

namespace reprise::planner {

// "auto", "memory", ...
std::string_view NameOf(Strategy strategy);
// INVALID_ARGUMENT: there is no such strategy; names those there are.
StatusOr<Strategy> ParseStrategy(std::string_view name);

// Execs of the plans that a strategy stands for; kAuto: of all of them. Several
// for kMemory, the one with the smallest peak first. Empty where the executor
// cannot run it. O(candidates * execs).
struct Candidate {
  Strategy strategy = Strategy::kSaveAll;
  int64_t peak_bytes = 0;
  int64_t time_ns = 0;
  std::vector<OpId> execs = {};
};
std::vector<Candidate> StrategyCandidates(const Problem& problem,
                                          Strategy strategy,
                                          Generator& generator);

}  // namespace reprise::planner
