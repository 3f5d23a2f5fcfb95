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
#pragma once

#include <vector>

#include "planner/model/problem.h"

namespace reprise::planner {

// Returns the values that the forward makes before and reads after one of the
// `count` - 1 boundaries between segments, each once.
std::vector<ValueId> SegmentEnds(const Problem& problem, int count);

}  // namespace reprise::planner
