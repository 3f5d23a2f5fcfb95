// SPDX-License-Identifier: Apache-2.0
//
// Schedules found from their end, for budgets at which little else fits.
//
// Read a schedule backwards. What has to be present after an exec is a set of
// values X; before it, the set is
//
//   X - (what the op makes) + (what the op reads)
//
// and memory while it runs is X, its outputs, its inputs and its workspace. So
// a schedule is a walk from the values required at the end to the empty set:
// the first runs in falling base order and any re-runs in between. Nothing
// that comes earlier in the step has been decided yet, so there is nothing to
// evict and nothing to look back at: the set says it all, and whatever can be
// done from a set can be done from every part of it.
//
// The walk takes the next first run where that stays below a mark under the
// budget. Else some value leaves the set: its maker runs again, and what of
// that maker's inputs is not in the set anyway leaves the same way, latest
// first. That is followed until the set is smaller than before; where the
// budget is in the way, values of the part under way are reduced first (to a
// small depth). Of all values, the one with the most bytes per time goes, or
// with the most bytes times distance to its next reader. Where none can go,
// every re-run that fits is tried with all reductions after it, and the one
// that leads to the smallest set is taken.
//
// A storage holds one version at a time. Where an op would need one version of
// it before and something later needs another, the latter is made again first:
// undoing an op that mutates leads to the version before, undoing the writer
// to none. What the program holds until an op has run enters the set there and
// leaves it with its first writer; the state of a generator is there from the
// last run of its op, the first that is met, to the first run.
//
// A low mark leaves room in which values can still be reduced; a high one
// takes fewer re-runs. Whoever calls tries some.
//
// O(values in the set x ops that one reduction looks at) per step.
#pragma once

#include <cstdint>
#include <vector>

#include "planner/model/effort.h"
#include "planner/model/problem.h"

namespace reprise::planner {

struct UnwindOptions {
  int64_t budget_bytes = 0;
  // The mark, in percent of the budget less static memory.
  int mark_percent = 90;
  // Bytes count times distance to the next reader.
  bool by_distance = false;
  // Execs per op at which the walk is given up.
  int most_execs_per_op = 100;
  int64_t most_ticks = 0;  // 0: as the effort allows
};

// The execs of a schedule within the budget, or nothing where the walk ends
// in a set that cannot be left. The evaluator has the last word: outputs that
// an executor allocates twice are not counted.
std::vector<OpId> Unwind(const Problem& problem, const UnwindOptions& options,
                         Effort& effort);

}  // namespace reprise::planner
