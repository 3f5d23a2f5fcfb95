// SPDX-License-Identifier: Apache-2.0
//
// Plans for executors that run regions and sets of saved storages rather than
// schedules (defined in regions.h): kinds `once` and `nested`. There is one
// archive, and one curve, per kind and depth of nesting.
//
// `once` is one lazy region around the forward: only the levels are searched.
//
// `nested` starts from three kinds of regions, as deep as allowed: the stages
// of the chain that the step resembles, joined to fewer and fewer (Chen et al.,
// 2016, one level); recursive halves of them (the same paper's recursion,
// memory O(log n) at O(n log n) time); and the regions inside the schedules of
// Rotor and Revolve, which nest because a checkpoint stays until its backward
// (rotor.h) and which are optimal on uniform chains. What the forward saves is
// taken from schedules without that restriction, from named plans and from
// minimum cuts. Regions that do not nest are always tried, and first.
//
// Then annealing from the best few: the level of a storage changes, or a region
// is added, removed, or moves one of its ends. O(execs) per step.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "planner/model/archive.h"
#include "planner/model/effort.h"
#include "planner/model/flags.h"
#include "planner/model/plan.h"
#include "planner/model/problem.h"
#include "planner/regions/regions.h"

namespace reprise::planner {

// By storage: whether it is saved.
using SavedSet = std::vector<uint8_t>;

// Returns the storages that a schedule saves: those it does not recompute.
SavedSet SavedBy(const Problem& problem, const std::vector<OpId>& execs);

// Returns the executor's closest plan to a schedule that it cannot run as it
// is: for kOnce its saved set, for kNested the regions of its re-runs.
RegionPlan PlanLike(const Problem& problem, const std::vector<OpId>& execs);

// Evaluates a plan and adds it to the archive. Returns false if the plan cannot
// be run.
bool AddRegions(const Problem& problem, const RegionPlan& plan,
                const std::string& solver, Archive& archive);

// Searches for schedules that obey the same rules but are not made of regions.
// Returns them, or null if nothing fits, and the time that all of them add.
using SearchAny = std::function<std::pair<const Archive*, int64_t>()>;

// Adds plans that the problem's executor can run to `archive`. For `begin_ticks`
// (0: not at all) it tries what is known without a search: named plans, cuts at
// the boundary, stages of the chain and their divisions, each in O(ops), and
// anneals if none of these fits. Then it calls `any`, once, and continues from
// its schedules, until the effort is over or a plan within the budget adds no
// more time than the bound plus the target gap allows.
void SearchRegions(const Problem& problem, const Request& request,
                   Generator& generator, Archive& archive, Effort& effort,
                   int64_t begin_ticks, const SearchAny& any);

}  // namespace reprise::planner
