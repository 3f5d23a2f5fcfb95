// SPDX-License-Identifier: Apache-2.0
//
// Plans for executors of kind `once` (once.h).
//
// What the forward saves is taken from named plans, from minimum cuts and from
// schedules without the restriction; then annealing from the best few, which
// saves a storage or drops it. O(execs) per step.
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
#include "planner/once/once.h"

namespace reprise::planner {

// Returns the set of a schedule that such an executor cannot run as it is: the
// storages that it does not recompute.
SavedSet SavedBy(const Problem& problem, const std::vector<OpId>& execs);

// Evaluates what the executor runs under a set and adds it to the archive.
// Returns false if it cannot run the set.
bool AddSaved(const Problem& problem, const SavedSet& saved,
              const std::string& solver, Archive& archive);

// Searches for schedules that obey the same rules but do not follow from a saved
// set. Returns them, or null if nothing fits, and the time that all of them add.
using SearchAny = std::function<std::pair<const Archive*, int64_t>()>;

// Adds plans that the problem's executor can run to `archive`. For `begin_ticks`
// (0: not at all) it tries what is known without a search: named plans and cuts
// at the boundary, each in O(ops), and anneals if none of these fits. Then it
// calls `any`, once, and continues from its schedules, until the effort is over
// or a plan within the budget adds no more time than the bound plus the target
// gap allows.
void SearchOnce(const Problem& problem, const Request& request,
                Generator& generator, Archive& archive, Effort& effort,
                int64_t begin_ticks, const SearchAny& any);

}  // namespace reprise::planner
