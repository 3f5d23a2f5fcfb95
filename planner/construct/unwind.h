// SPDX-License-Identifier: Apache-2.0
//
// Schedules constructed from their end, for budgets at which little else fits.
//
// Read a schedule backwards. A set X of values must be present after an exec;
// before it, the set is
//
//   X - (what the op makes) + (what the op reads)
//
// and memory while it runs is X, its outputs, its inputs and its workspace. So
// a schedule is a walk from the values required at the end to the empty set:
// the first runs in falling base order, with any re-runs in between. Nothing
// earlier in the step has been decided yet, so there is nothing to evict or to
// look back at. The set is the whole state, and whatever can be done from a set
// can be done from each of its subsets.
//
// The walk takes the next first run if memory then stays below a mark under the
// budget. Otherwise some value is removed from the set: its maker runs again,
// and the maker's inputs that were not in the set are removed the same way,
// latest first, until the set is smaller than before. If the budget does not
// allow that, values of the current part are reduced first (to a small depth).
// The value chosen is the one with the most bytes per time, or with the most
// bytes times distance to its next reader. If no value can be removed, every
// re-run that fits is tried with all reductions after it, and the one that
// leads to the smallest set is taken.
//
// A storage holds one version at a time. If an op would need one version before
// it and something later needs another, the latter is recomputed first: undoing
// an op that mutates leads to the version before, undoing the writer to none. A
// storage that the program holds until some op enters the set at that op and
// leaves it with its first writer. What is pinned stays where its op runs again
// for another output. A generator's state is present from the last run of its
// op, which is met first, to the first run.
//
// A low mark leaves room in which values can still be reduced; a high one needs
// fewer re-runs. The caller tries several.
//
// O(values in the set x ops visited by one reduction) per step.
#pragma once

#include <cstdint>
#include <vector>

#include "planner/model/effort.h"
#include "planner/model/problem.h"

namespace reprise::planner {

struct UnwindOptions {
  int64_t budget_bytes = 0;
  // The mark, as a percentage of the budget less static memory.
  int mark_percent = 90;
  // Choose values by bytes times distance to the next reader.
  bool by_distance = false;
  // If not 0: the weights of values are random, by this seed.
  uint64_t seed = 0;
  int64_t most_ticks = 0;  // 0: as much as the effort allows
};

// Returns the execs of a schedule within the budget, or nothing if the walk
// reaches a set from which it cannot continue. The evaluator must confirm the
// schedule: outputs that an executor allocates twice are not counted.
std::vector<OpId> Unwind(const Problem& problem, const UnwindOptions& options,
                         Effort& effort);

}  // namespace reprise::planner
