// SPDX-License-Identifier: Apache-2.0
//
// Schedules from minimum cuts.
//
// A keep-set at t becomes flags: the gap spanning t of every value that the
// cut recomputes is `share`; values that it saves although only recomputes
// read them keep their tail. Where the schedule still exceeds the budget, the
// base op at its peak becomes the next window; a window whose peak stays too
// high is asked again with less room. Each round is one cut and one Generate.
//
// Then *restore*: dropped gaps go back to `save`, costliest first, where the
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
  // Tails of recomputed values: re-created once and kept, or dropped again.
  Retention tail = Retention::kAgain;
};

// Applies one keep-set on top of what the flags say already.
void ApplyKeepSet(const Problem& problem, const KeepSet& cut, Retention tail,
                  Flags& flags);

// The best flags found, by score; every valid schedule feeds the archive.
Flags FromCuts(const Problem& problem, const ConstructOptions& options,
               Certificate& certificate, Generator& generator, Archive& archive,
               Effort& effort);

// Returns dropped gaps to `save` while the score falls. Stops at `ticks`.
void Restore(const Problem& problem, const Score& score, int64_t ticks,
             Generator& generator, Flags& flags, Archive& archive,
             Effort& effort);

// Takes re-runs out of a list of execs: those whose output could have stayed
// since its last life within the budget, or that nobody reads. Most time per
// byte and exec first, in passes until nothing changes. Values of storages
// with several versions and ops with several outputs are left alone.
std::vector<OpId> HoldMore(const Problem& problem, int64_t budget_bytes,
                           std::vector<OpId> execs, int64_t ticks,
                           Effort& effort);

}  // namespace reprise::planner
