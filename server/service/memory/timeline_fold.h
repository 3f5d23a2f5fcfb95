// SPDX-License-Identifier: Apache-2.0
//
// Reduces a step function of time to the columns of a screen.
//
//   bytes            a point holds until the next one, the last one until
//     |   __         `end_ns`. Every column keeps the largest and the smallest
//     |__|  |___     value of the function within it, so even a peak of zero
//     +---------     duration is visible at any zoom.
//
// O(points + columns).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/status.h"
#include "reprise/v1/query.pb.h"

namespace reprise::server {

struct BytesAt {
  int64_t time_ns = 0;
  int64_t bytes = 0;
};

inline constexpr uint32_t kDefaultColumns = 1000;
inline constexpr uint32_t kMaxColumns = 8192;

struct FoldWindow {
  int64_t from_ns = 0;
  int64_t to_ns = 0;  // both 0: everything
  uint32_t columns = kDefaultColumns;
};

// INVALID_ARGUMENT: too many columns, or a window outside [0, end_ns].
Status CheckWindow(const FoldWindow& window, int64_t end_ns);

// The columns that a valid window of a step of `end_ns` is drawn in.
struct FoldColumns {
  int64_t from_ns = 0;
  int64_t column_ns = 1;
  int64_t count = 1;
};
FoldColumns ColumnsOf(int64_t end_ns, const FoldWindow& window);

// Reduces `points`, sorted by time, the first at or before 0. `window` must be
// valid.
v1::Curve Fold(std::span<const BytesAt> points, int64_t end_ns,
               const FoldWindow& window);

}  // namespace reprise::server
