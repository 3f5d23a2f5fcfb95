// SPDX-License-Identifier: Apache-2.0
//
// Proofs of impossible that look further back than one op.
//
// A set X of values is present when op o first runs: need(o). Look at the last
// exec that made one of them, say m. All others of X were made before and stay
// present, so while m runs
//
//   memory >= static + bytes(X and need(m) and make(m)) + workspace(m)
//
// and when m starts, X' = X - make(m) + need(m) is present: the same question
// for X'. The least over all choices of m of the largest memory on the way
// back is a lower bound for every budget, in any order, with any number of
// re-runs: a pebbling of the ancestors of o (Sethi, 1975). Best-first search
// over sets by that bottleneck: whatever it pops first is proven, so it may
// stop at any time, and what it has proven then survives.
#pragma once

#include <cstdint>
#include <functional>

#include "planner/model/problem.h"

namespace reprise::planner {

struct PebbleResult {
  // Proven: no schedule that runs the op has a smaller peak.
  int64_t least_bytes = 0;
  // Sets and execs looked at.
  int64_t ticks = 0;
};

// Stops as soon as more than `enough_bytes` is proven, after `most_states`
// sets, when a way back to nothing is found, or when `should_stop` (asked often)
// says so.
PebbleResult LeastPeakOf(const Problem& problem, OpId op, int64_t enough_bytes,
                         int most_states,
                         const std::function<bool()>& should_stop = {});

}  // namespace reprise::planner
