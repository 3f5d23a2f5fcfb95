// SPDX-License-Identifier: Apache-2.0
//
// Where to divide a long forward, so that what is recomputed is recomputed in
// short bursts.
//
// A minimum cut decides what is saved at one window and sees no burst: of a
// thousand equal values it recomputes any, and if they follow each other, all of
// them are present at the end of one burst. If the values that cross from one
// segment of the forward to the next are saved, no burst is longer than a
// segment. Equal blocks are no condition (compare block_plan.h). A boundary is
// where the fewest bytes cross, at most half a segment from its even place:
//
//   forward   o o o o|o o o o o|o o o|o o o o
//   even             ^        ^       ^
//
// Even segments suit no burst well: the first one of the backward has little
// room, and each that has passed leaves more. *Fitting* segments are as long as
// their bursts find room, beginning with the one before the turn, so that few
// boundaries have to be saved:
//
//   forward   o o o o o o o o|o o o o|o o|o| turn
#pragma once

#include <vector>

#include "planner/bounds/window_bound.h"
#include "planner/model/effort.h"
#include "planner/model/problem.h"

namespace reprise::planner {

// Returns the values that cross a boundary. `last`: by value, its last reader in
// the forward. `boundary`: by op of the forward, and its end, itself where there
// is a boundary before it, else the end.
std::vector<ValueId> CrossingValues(const Problem& problem,
                                    const std::vector<OpId>& last,
                                    std::vector<OpId> boundary);

// Returns the values that the forward makes before and reads after one of the
// `count` - 1 boundaries between segments, each once.
std::vector<ValueId> SegmentEnds(const Problem& problem, int count);

// Returns, by value, its bytes less up to a quarter: the nearer the turn its
// maker runs, the less. A cut that pays by these saves rather what the backward
// frees early, which leaves more room for the bursts after it.
std::vector<int64_t> CheaperNearTurn(const Problem& problem);

// Returns the values to save so that each burst fits the budget, by an estimate
// of its memory: what the cut saves, what the backward makes, and what the
// bursts make, each from the start of its burst to its last reader. Where a
// burst has less than its boundary, or no room at all, its own values are among
// them instead. `ends` are the values that the cut had to save. O(values + uses)
// ticks, and one per range of ops that an estimate changes.
std::vector<ValueId> FittingEnds(const Problem& problem, const KeepSet& cut,
                                 const std::vector<ValueId>& ends,
                                 int64_t budget_bytes, Effort& effort);

}  // namespace reprise::planner
