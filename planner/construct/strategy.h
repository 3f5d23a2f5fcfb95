// SPDX-License-Identifier: Apache-2.0
//
// Named plans, which people know: for comparison, and as candidates of the
// portfolio, which is never worse than any of them at the same budget.
//
//   save-all     the base order
//   memory       keep O(sqrt n): at the chain's cut positions, keep the values
//                that cross one per so many bytes, and recompute the rest
//                segment by segment (Chen et al., 2016; with articulation
//                points as in the gradient-checkpointing package, 2018). Tries
//                six segment sizes around sqrt(boundary * largest stage), and
//                the square root of the number of stages; the plan is the one
//                with the smallest peak
//   speed        keep the outputs of convolutions and matrix products
//   collection   keep what the user marked (`Storage::pinned`)
//   per-block    recompute every repeated module (`layers.3`), keeping what
//                leaves it, as most people do today. Without module names,
//                every stage of the chain
//
// All of them recompute in the backward only, each value once, when it is first
// needed. If a graph has no backward, each is the base order.
#pragma once

#include <string_view>
#include <vector>

#include "base/status.h"
#include "planner/model/archive.h"
#include "planner/model/flags.h"
#include "planner/model/plan.h"
#include "planner/model/problem.h"

namespace reprise::planner {

// Returns "auto", "memory", ...
std::string_view NameOf(Strategy strategy);
// INVALID_ARGUMENT: there is no such strategy; the message lists them.
StatusOr<Strategy> ParseStrategy(std::string_view name);

// Returns the plans of a strategy, or of all for kAuto. kMemory has several;
// the one with the smallest peak comes first. Empty if the executor cannot run
// them. Their solvers are the names. O(candidates * execs).
std::vector<Archive::Point> StrategyCandidates(const Problem& problem,
                                               Strategy strategy,
                                               Generator& generator);
// Adds all of them to the archive, each by its name.
void AddStrategies(const Problem& problem, Generator& generator,
                   Archive& archive);

}  // namespace reprise::planner
