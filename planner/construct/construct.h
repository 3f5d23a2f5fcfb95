// SPDX-License-Identifier: Apache-2.0
//
// Schedules from minimum cuts.
//
// A keep-set at t becomes flags: the gap spanning t of every value that the cut
// recomputes is `share`; values that it saves although only re-runs read them
// keep their tail. If the schedule still exceeds the budget, the base op at its
// peak becomes the next window; a window whose peak stays too high is solved
// again with less room. Each round is one cut and one Generate.
//
// Then *restore*: discarded gaps return to `save`, costliest first, if the
// schedule stays within the budget.
#pragma once

#include "planner/bounds/certificate.h"
#include "planner/model/archive.h"
#include "planner/model/flags.h"
#include "planner/model/score.h"

namespace reprise::planner {

struct ConstructOptions {
  int64_t budget_bytes = 0;
  int rounds = 40;
  int64_t ticks = 0;  // 0: as many as the rounds take
  // Tails of recomputed values: recomputed once and kept, or discarded again.
  Retention tail = Retention::kAgain;
};

// Applies one keep-set on top of the current flags.
void ApplyKeepSet(const Problem& problem, const KeepSet& cut, Retention tail,
                  Flags& flags);

// Returns the best flags found, by score. Every valid schedule goes to the
// archive.
Flags FromCuts(const Problem& problem, const ConstructOptions& options,
               Certificate& certificate, Generator& generator, Archive& archive,
               Effort& effort);

// Returns discarded gaps to `save` while the score falls. Stops at `ticks`.
void Restore(const Problem& problem, const Score& score, int64_t ticks,
             Generator& generator, Flags& flags, Archive& archive,
             Effort& effort);

// Removes re-runs from a list of execs: those whose output could have stayed
// since its last life within the budget, or is not read. Most time per byte and
// exec first, in passes until nothing changes. Skips values of storages with
// several versions and ops with several outputs. Returns the new list.
std::vector<OpId> HoldMore(const Problem& problem, int64_t budget_bytes,
                           std::vector<OpId> execs, int64_t ticks,
                           Effort& effort);

}  // namespace reprise::planner
