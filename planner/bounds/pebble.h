// SPDX-License-Identifier: Apache-2.0
//
// Proofs of impossibility that look further back than one op.
//
// A set X of values is present when op o first runs: need(o). Consider the last
// exec that made one of them, of op m. All others of X were made before and
// stay present, so while m runs
//
//   memory >= static + bytes(X and need(m) and make(m)) + workspace(m)
//
// and when m starts, X' = X - make(m) + need(m) is present: the same situation
// for X'. The minimum, over all choices of m, of the largest memory on the way
// back is a lower bound for every budget, in any order, with any number of
// re-runs: a pebbling of the ancestors of o (Sethi, 1975). It is found by
// best-first search over sets by that bottleneck. What the search pops first is
// proven, so it may stop at any time and keeps what it has proven.
#pragma once

#include <cstdint>
#include <functional>

#include "planner/model/problem.h"

namespace reprise::planner {

struct PebbleResult {
  // Proven: every schedule that runs the op has at least this peak.
  int64_t least_bytes = 0;
  // Sets and execs visited.
  int64_t ticks = 0;
};

// Returns a lower bound of the peak of every schedule that runs `op`. Stops
// once more than `enough_bytes` is proven, after `most_states` sets or `most_ticks`, when
// a way back to the empty set is found, or when `should_stop` returns true.
PebbleResult LeastPeakOf(const Problem& problem, OpId op, int64_t enough_bytes,
                         int most_states, int64_t most_ticks,
                         const std::function<bool()>& should_stop = {});

}  // namespace reprise::planner
