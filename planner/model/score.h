// SPDX-License-Identifier: Apache-2.0
//
// The objective of the searches: time plus a price on bytes above the budget.
//
//   score = time + factor * base_time / base_peak * max(0, peak - budget)
//
// The factor starts at 20: 1 % of the base peak costs 20 % of the base time,
// more than recomputing it should ever cost.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>

#include "planner/model/flags.h"

namespace reprise::planner {

struct Score {
  int64_t budget_bytes = 0;
  int64_t base_time_ns = 1;
  int64_t base_peak_bytes = 1;
  int64_t factor = 20;

  static constexpr int64_t kWorst = std::numeric_limits<int64_t>::max();

  // Returns the score of a generated schedule; kWorst if it is invalid.
  int64_t Of(const Generated& generated) const {
    if (!generated.valid) return kWorst;
    const int64_t over = generated.peak_bytes - budget_bytes;
    if (over <= 0) return generated.time_ns;
    const __int128 price = static_cast<__int128>(over) * factor *
                           std::max<int64_t>(1, base_time_ns) /
                           std::max<int64_t>(1, base_peak_bytes);
    const __int128 score = price + generated.time_ns + 1;
    return score >= kWorst ? kWorst - 1 : static_cast<int64_t>(score);
  }
};

// Returns the score of a problem's schedules at a budget.
inline Score ScoreOf(const Problem& problem, int64_t budget_bytes,
                     int64_t factor = 20) {
  return {.budget_bytes = budget_bytes,
          .base_time_ns = problem.base.time_ns,
          .base_peak_bytes = problem.base.peak_bytes,
          .factor = factor};
}

}  // namespace reprise::planner
