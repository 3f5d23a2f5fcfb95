// SPDX-License-Identifier: Apache-2.0
//
// The verifier's own evaluator: walks a schedule and determines whether it is
// valid, its peak and its time. It follows the rules in docs/formats.md and
// shares no code with planner/model/evaluate.h. O(length + arities).
#pragma once

#include <cstdint>
#include <span>

#include "planner/verify/facts.h"

namespace reprise::verify {

// As in protos and files: e >= 0 runs op e; e < 0 is about storage n modulo
// 2^24, where n = -e-1: n / 2^24 is 0 to free it, 1 send, 2 sent, 3 fetch, 4
// fetched.
using Entries = std::span<const int64_t>;

struct Walked {
  int64_t peak_bytes = 0;
  int64_t time_ns = 0;
  int64_t base_time_ns = 0;  // every op once
  int64_t host_peak_bytes = 0;
};

// INVALID_ARGUMENT names the first invalid entry.
StatusOr<Walked> Walk(const Facts& facts, Entries schedule);

}  // namespace reprise::verify
