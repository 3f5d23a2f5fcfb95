// SPDX-License-Identifier: Apache-2.0
//
// Regions: plans of executors that run stretches of the forward again.
//
// A region is a stretch [begin, end) of forward ops. Regions nest: two regions
// are disjoint, or one contains the other. This models torch.utils.checkpoint
// around functions that call checkpointed functions:
//
//   forward      op 0 .. op 9; little inside the regions is kept
//   at a need    [0, 10) runs again and keeps what crosses between the regions
//                inside it; then [5, 10) runs again for its own backward; later
//                [0, 5)
//
//        [0 ................ 10)     depth 1
//        [0 .... 5)[5 ..... 10)      depth 2
//
// The *home* of a storage is the innermost region that contains every forward
// op that writes, mutates or reads it; so the home of a storage that crosses
// between two regions is the region around both. Storages that may not be
// recomputed, or that the program holds into the backward, have no home. The
// *level* says who keeps a storage: 0 the forward; k the re-run of the region
// at depth k around its home. No level is deeper than that of the home.
//
// Replay. At the first need of a discarded storage, the regions around its home
// run again from the outermost down to its level, each once in a step. A region
// at depth k runs those of its ops again, in base order, that make absent
// storages of level <= k, or what these need; storages of a deeper level that
// it makes are freed when it ends. Ops whose outputs are not read are not run
// (unread.h). An op at depth d runs at most 1 + d times, so `max_runs` limits
// the nesting.
//
// Lazy regions (capability `lazy_region`): an innermost region recomputes, at
// each need, only what that op needs. One lazy region around the whole forward
// is execution `once`.
//
// Everything here is O(execs + arities), plus O(depth) per use of a value.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/status.h"
#include "planner/model/problem.h"

namespace reprise::planner {

// INVALID_ARGUMENT if regions are outside the forward, empty, not sorted (by
// begin, outer before inner), overlap without nesting, or occur twice; or if
// levels are negative or not one per storage.
Status CheckRegions(const Problem& problem, const RegionPlan& plan);

// Returns the depth of the innermost regions.
int DepthOf(const RegionPlan& plan);

// Returns regions sorted as CheckRegions requires: cut where they overlap,
// without duplicates, and, where they nest deeper than `most_depth`, only the
// outer ones.
std::vector<Region> Nested(std::vector<Region> regions, int most_depth);

// By storage: the depth of its home.
std::vector<int32_t> HomeDepths(const Problem& problem,
                                std::span<const Region> regions);

// Returns the execs of a valid plan; empty if the executor cannot run it.
std::vector<OpId> RegionExecs(const Problem& problem, const RegionPlan& plan);

// Returns the plan that comes closest to a list of execs: every ascending
// stretch of re-runs becomes a region, and whichever made a storage last keeps
// it. For Rotor's and Revolve's schedules of chains, the result takes no longer
// and needs at most one more value of memory, because the output of a region is
// saved (RegionsTest.TakesRevolvesSchedulesOver).
RegionPlan RegionsOfExecs(const Problem& problem,
                          const std::vector<OpId>& execs, int most_depth);

// The evaluator for executors with regions: evaluates the schedule.
// INVALID_ARGUMENT unless it is what such an executor does under `plan`.
StatusOr<Evaluation> EvaluateRegions(const Problem& problem,
                                     std::span<const Entry> schedule,
                                     const RegionPlan& plan);

}  // namespace reprise::planner
