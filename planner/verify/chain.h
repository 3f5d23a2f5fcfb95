// SPDX-License-Identifier: Apache-2.0
//
// Verifies refusals that look back from an op: kChain of certificate.h.
//
// When op t first runs, the set X of its inputs is present. Consider the last
// of the execs that made them, of an op m: all else of X was present while m
// ran, together with what m reads and makes. Just before it, X without what m
// makes, plus what m reads, was present: the same situation again. So if every
// way back to the empty set passes through a moment of at least B bytes,
// nothing fits in less than B, in any order and with any number of re-runs.
//
// The check walks back from X through all moments of less than B bytes: the
// claim is true if that walk ends without reaching the empty set.
#pragma once

#include <cstdint>

#include "planner/verify/facts.h"

namespace reprise::verify {

// Returns OK if nothing fits in less than `least_bytes`. INVALID_ARGUMENT if
// some way back needs less; RESOURCE_EXHAUSTED after too many sets.
Status CheckChain(const Facts& facts, OpId at, int64_t least_bytes);

}  // namespace reprise::verify
