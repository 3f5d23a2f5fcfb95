// SPDX-License-Identifier: Apache-2.0
#include "server/service/memory/timeline_fold.h"

#include <algorithm>
#include <limits>

#include "base/str_cat.h"

namespace reprise::server {

Status CheckWindow(const FoldWindow& window, int64_t end_ns) {
  if (window.columns == 0 || window.columns > kMaxColumns) {
    return InvalidArgument(StrCat("width_px: must be 1 to ", kMaxColumns,
                                  ", got ", window.columns));
  }
  if (window.from_ns == 0 && window.to_ns == 0) return OkStatus();
  if (window.from_ns < 0 || window.from_ns >= window.to_ns ||
      window.from_ns > end_ns) {
    return InvalidArgument(StrCat("t0_ns, t1_ns: ", window.from_ns, " to ",
                                  window.to_ns, " is not inside the step of ",
                                  end_ns, " ns"));
  }
  return OkStatus();
}

FoldColumns ColumnsOf(int64_t end_ns, const FoldWindow& window) {
  const bool whole = window.from_ns == 0 && window.to_ns == 0;
  const int64_t from = window.from_ns;
  // + 1, so that a point at the very end, or a step of zero length, has a
  // column.
  const int64_t to = whole ? end_ns + 1 : std::min(window.to_ns, end_ns + 1);
  const int64_t length = std::max<int64_t>(to - from, 1);
  const int64_t wanted = window.columns;
  const int64_t column_ns = (length + wanted - 1) / wanted;
  return {.from_ns = from,
          .column_ns = column_ns,
          .count = (length + column_ns - 1) / column_ns};
}

v1::Curve Fold(std::span<const BytesAt> points, int64_t end_ns,
               const FoldWindow& window) {
  v1::Curve curve;
  curve.set_step_ns(end_ns);
  if (points.empty()) return curve;
  for (const BytesAt& point : points) {
    if (point.bytes > curve.peak_bytes()) {
      curve.set_peak_bytes(point.bytes);
      curve.set_peak_at_ns(std::max<int64_t>(point.time_ns, 0));
    }
  }

  const auto [from, column_ns, columns] = ColumnsOf(end_ns, window);
  curve.set_start_ns(from);
  curve.set_column_ns(column_ns);
  curve.mutable_max_bytes()->Reserve(static_cast<int>(columns));
  curve.mutable_min_bytes()->Reserve(static_cast<int>(columns));

  size_t next = 0;
  int64_t held = points.front().bytes;
  // The value of the function at the beginning of the window.
  while (next < points.size() && points[next].time_ns < from) {
    held = points[next++].bytes;
  }
  for (int64_t i = 0; i < columns; ++i) {
    const int64_t begin = from + i * column_ns;
    int64_t most = std::numeric_limits<int64_t>::min();
    int64_t least = std::numeric_limits<int64_t>::max();
    // The old value counts only if it lasts into the column.
    if (next >= points.size() || points[next].time_ns > begin) {
      most = least = held;
    }
    while (next < points.size() && points[next].time_ns < begin + column_ns) {
      held = points[next++].bytes;
      most = std::max(most, held);
      least = std::min(least, held);
    }
    curve.add_max_bytes(most);
    curve.add_min_bytes(least);
  }
  return curve;
}

}  // namespace reprise::server
