// SPDX-License-Identifier: Apache-2.0
//
// Joins bursts of re-runs, for long steps. What a burst starts from (a
// checkpoint) takes memory from the forward until that burst. Late bursts have
// room to spare, so that theirs may be longer and start from fewer checkpoints:
//
//   forward    o C o o C o o C o o | backward       C: saved
//   bursts                         |   o o    o o    o o    three of 2 ops
//   joined     o C o o o o o C o o |   o o    o o o o o     a longer late one
//
// A checkpoint that is no longer saved is made again where it is read, after
// what it derives from; what the next burst made again then stays from here on
// and is not made again there. Annealing seldom finds this: it takes dozens of
// re-runs at once, and pays only with what else the memory is used for. So
// checkpoints are discarded one after the other, those read last first, while
// one costs less than its bytes are worth at the window of the best bound; in
// the room this leaves, re-runs are deleted, those that save most time per byte
// first. What did not make the schedule faster after a few checkpoints is
// reverted.
#pragma once

#include <cstdint>
#include <vector>

#include "planner/model/effort.h"
#include "planner/model/problem.h"

namespace reprise::planner {

// Returns a list of execs within the budget that takes no longer than `execs`,
// which is valid and fits. `at` is the op of the window, `ns_per_byte` what a
// byte present while it runs is worth.
std::vector<OpId> JoinBursts(const Problem& problem, int64_t budget_bytes,
                             OpId at, double ns_per_byte,
                             const std::vector<OpId>& execs, int64_t most_ticks,
                             Effort& effort);

}  // namespace reprise::planner
