// SPDX-License-Identifier: Apache-2.0
//
// Refusals that look back from an op, checked: kChain of certificate.h.
//
// When op t first runs, the set X of its inputs is present. Of the execs that
// made them, look at the last, of an op m: all else of X was present while m
// ran, with what m reads and makes. Just before it, X without what m makes and
// with what m reads was present: the same question again. So if every way back
// to the empty set meets a moment of at least B bytes, nothing fits in less
// than B, in any order and with any number of re-runs.
//
// The sets are found by walking back from X along moments of less than B: the
// claim is true where that walk ends without having met the empty set.
#pragma once

#include <cstdint>

#include "planner/verify/facts.h"

namespace reprise::verify {

// OK: nothing fits in less than `least_bytes`. INVALID_ARGUMENT where some way
// back needs less; RESOURCE_EXHAUSTED after too many sets.
Status CheckChain(const Facts& facts, OpId at, int64_t least_bytes);

}  // namespace reprise::verify
