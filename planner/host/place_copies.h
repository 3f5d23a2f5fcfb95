// SPDX-License-Identifier: Apache-2.0
//
// Where the copies of a schedule go: execs and a budget in, a schedule with
// frees and copies out.
//
// A storage that is not used between two execs of one life has a *gap* there.
// Where execs exceed the budget, walking from the first to the last, the gap
// whose next use is farthest is moved to the host (Belady, 1966): what is made
// first in the forward and read last in the backward, which the link has most
// time for. Gaps shorter than both of their copies come last. Two more walks
// place the entries of what was chosen:
//
//   send     right behind the exec that made the value
//   sent     forward: only when memory exceeds the budget otherwise, in the
//            order of the sends, which is that in which copies end
//   fetch    backward: as early as memory allows, in the order of the readers,
//            which is best for one engine (Jackson, 1955)
//   fetched  right before the reader
//
// What is there before and after the step, as the state of optimizers is, has the
// widest gaps. It may be too coarse: `whole_last` moves it where other gaps do
// not suffice.
//
// A gap that turns out not to be needed stays. O(length + gaps * log gaps), and
// gaps times their lengths where host memory is short.
#pragma once

#include <cstdint>
#include <vector>

#include "planner/model/problem.h"

namespace reprise::planner {

// Returns the execs with the frees of the problem's policy and as many copies as
// the budget requires; fewer, and a higher peak, where gaps or host memory do not
// suffice. Invalid execs give an invalid schedule.
Schedule PlaceCopies(const Problem& problem, const std::vector<OpId>& execs,
                     int64_t budget_bytes, bool whole_last = false);

// Returns whether a step has anything that is there before and after it, and may
// move to the host.
bool HasWhole(const StepGraph& graph);

}  // namespace reprise::planner
