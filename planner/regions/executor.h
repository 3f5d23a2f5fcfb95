// SPDX-License-Identifier: Apache-2.0
//
// Plans for executors that run no schedule but regions and sets of saved
// storages (regions.h has what they do with them): kinds `once` and `nested`.
// One archive, and one curve, per kind and depth of nesting.
//
// `once` is one lazy region around the forward: only the levels are searched.
//
// `nested` starts from regions of three kinds, as deep as may be: the stages of
// the chain that the step resembles, joined to fewer and fewer (Chen et al.,
// 2016, one level); halves of halves of them (the same paper's recursion,
// memory O(log n) at O(n log n) time); and the regions inside the schedules of
// Rotor and Revolve, which nest because a checkpoint stays until its backward
// (rotor.h): on uniform chains the best there is. What the forward saves comes
// from schedules without that restriction, from plans by name and from minimum
// cuts. Regions that do not nest are tried first and in any case.
//
// Then annealing, from the best few: the level of a storage changes, a region
// comes, goes, or one of its ends moves. O(execs) per step.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "planner/model/archive.h"
#include "planner/model/effort.h"
#include "planner/model/flags.h"
#include "planner/model/plan.h"
#include "planner/model/problem.h"
#include "planner/regions/regions.h"

namespace reprise::planner {

// By storage.
using SavedSet = std::vector<uint8_t>;

// What a schedule saves: the storages it does not make again.
SavedSet SavedBy(const Problem& problem, const std::vector<OpId>& execs);

// What the executor makes of a schedule that it cannot run as it is: of kOnce
// its saved set, of kNested the regions of its re-runs.
RegionPlan PlanLike(const Problem& problem, const std::vector<OpId>& execs);

// Evaluates a plan and adds it to the archive. False where it cannot be run.
bool AddRegions(const Problem& problem, const RegionPlan& plan,
                const std::string& solver, Archive& archive);

// Feeds `archive` with plans that the problem's executor can run, beginning
// from those of `any`, until the effort is over or one within the budget adds
// no more than the gap target allows above `bound_ns`.
void SearchRegions(const Problem& problem, int64_t budget_bytes,
                   int64_t bound_ns, const Request& request, const Archive& any,
                   Generator& generator, Archive& archive, Effort& effort);

}  // namespace reprise::planner
