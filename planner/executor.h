// SPDX-License-Identifier: Apache-2.0
//
// The executors that run no schedule but a set of saved storages, and the
// search for such sets.
//
// A set says, for every storage made in the forward, whether it is still there
// when the backward begins (those nobody may make again always are). What the
// executor makes of it is written down as a list of execs, so that the
// evaluator replays exactly what will run; `Execution` in evaluate.h has the
// semantics. One archive, and one curve, per kind of executor.
//
// Search: sets taken from schedules without that restriction, from plans by
// name and from minimum cuts; then annealing over the sets, one storage at a
// time: drop one that is alive at the peak, save one that was dropped. O(execs)
// per set.
#pragma once

#include <cstdint>
#include <vector>

#include "planner/archive.h"
#include "planner/effort.h"
#include "planner/flags.h"
#include "planner/planner.h"
#include "planner/problem.h"

namespace reprise::planner {

// By storage.
using SavedSet = std::vector<uint8_t>;

// Everything is saved.
SavedSet SaveAll(const Problem& problem);

// What a schedule saves: the storages it does not make again.
SavedSet SavedBy(const Problem& problem, const std::vector<OpId>& execs);

// The execs of an executor of kind `kOnce`; empty where it cannot run the set.
std::vector<OpId> OnceExecs(const Problem& problem, const SavedSet& saved);

// The same for kind `kNested`. `region_of`: by forward op, ascending from 0.
// Storages read by forward ops of another region than their writer's are saved
// in any case.
std::vector<OpId> NestedExecs(const Problem& problem,
                              const std::vector<int32_t>& region_of,
                              const SavedSet& saved);

// Feeds `archive` with plans that the problem's executor can run, beginning
// from those of `any`, until the effort is over or one within the budget adds
// no more than the gap target allows above `bound_ns`.
void SearchSavedSets(const Problem& problem, int64_t budget_bytes,
                     int64_t bound_ns, const Request& request,
                     const Archive& any, Generator& generator, Archive& archive,
                     Effort& effort);

}  // namespace reprise::planner
