// SPDX-License-Identifier: Apache-2.0
//
// Regions: plans of executors that run stretches of the forward again.
//
// A region is a stretch [begin, end) of forward ops. Regions nest: of two, one
// holds the other or they are disjoint. What torch.utils.checkpoint does with
// functions that call checkpointed functions:
//
//   forward      op 0 .. op 9, of which the regions keep little
//   at a need    [0, 10) runs again and keeps what crosses between the regions
//                in it; then [5, 10) runs again for its own backward; later
//                [0, 5)
//
//        [0 ................ 10)     depth 1
//        [0 .... 5)[5 ..... 10)      depth 2
//
// The *home* of a storage is the innermost region that holds every forward op
// that writes, changes or reads it; so what crosses between two regions has its
// home around both. What nobody may make again, or the program holds into the
// backward, has none. The *level* says who keeps a storage: 0 the forward; k
// the re-run of the region at depth k around its home. No level is deeper than
// that.
//
// Replay. At the first need of something dropped, the regions around its home
// run again from the outermost down to its level, each once in a step. A region
// at depth k runs again those of its ops, in base order, that make something
// not there of level <= k, or what these need; what it made of a deeper level
// is gone when it ends. What nobody reads is not run (unread.h). An op at depth
// d runs at most 1 + d times, so `max_runs` limits how deep regions nest.
//
// Lazy regions (capability `lazy_region`): a region with none inside it makes
// again, at each need, only what that op needs. One lazy region around the
// whole forward is execution `once`.
//
// Everything here is O(execs + arities), and O(depth) more per use of a value.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/status.h"
#include "planner/model/problem.h"

namespace reprise::planner {

// INVALID_ARGUMENT where regions do not lie in the forward, are empty, are not
// sorted (by begin, the outer first), cross or come twice, or where levels are
// not one per storage and not negative.
Status CheckRegions(const Problem& problem, const RegionPlan& plan);

// Depth of the innermost regions.
int DepthOf(const RegionPlan& plan);

// Sorted as CheckRegions wants them: cut where they cross, the same one once,
// and of those nested deeper than `most_depth` the outer ones.
std::vector<Region> Nested(std::vector<Region> regions, int most_depth);

// By storage, the depth of its home.
std::vector<int32_t> HomeDepths(const Problem& problem,
                                std::span<const Region> regions);

// What the executor runs under a valid plan; empty where it cannot.
std::vector<OpId> RegionExecs(const Problem& problem, const RegionPlan& plan);

// The plan that comes closest to a list of execs: every ascending stretch of
// re-runs becomes a region, and what it made last keeps it. Of schedules of
// chains by Rotor and Revolve it makes one that takes no longer, and one value
// more of memory at most, because the output of a region is saved
// (RegionsTest.TakesRevolvesSchedulesOver).
RegionPlan RegionsOfExecs(const Problem& problem,
                          const std::vector<OpId>& execs, int most_depth);

// The referee of executors with regions: evaluates the schedule, and
// INVALID_ARGUMENT unless it is what such an executor does under `plan`.
StatusOr<Evaluation> EvaluateRegions(const Problem& problem,
                                     std::span<const Entry> schedule,
                                     const RegionPlan& plan);

}  // namespace reprise::planner
