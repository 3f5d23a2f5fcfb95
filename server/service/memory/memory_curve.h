// SPDX-License-Identifier: Apache-2.0
//
// Bytes alive over a step, event by event, with a pyramid of extremes, so that
// any part of it is reduced to a screen without reading all of it.
//
//   level 2    [ largest, smallest of 16 x 16 x 64 events ] ...
//   level 1    [ of 16 x 64 events ] ...
//   level 0    [ of 64 events ] [ ... ]
//   events      t0 b0, t1 b1, ...          a value holds until the next event
//
// A column of the screen is a range of events, found by binary search; its
// extremes take O(log events) steps. 16 bytes an event, and 3 % for the pyramid.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/status.h"
#include "reprise/v1/query.pb.h"

namespace reprise::server {

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

class MemoryCurve {
 public:
  MemoryCurve() = default;
  // Parallel columns: the time of each event, ascending, and the bytes that are
  // alive from then on. The event `first` is the state at the begin; the peak is
  // of it and those after it.
  MemoryCurve(std::vector<int64_t> times, std::vector<int64_t> bytes,
              size_t first = 0);

  size_t size() const { return times_.size(); }
  int64_t time(size_t event) const { return times_[event]; }
  int64_t bytes(size_t event) const { return bytes_[event]; }

  // Returns the last event at or before `time_ns`; 0 if all are later.
  size_t EventAt(int64_t time_ns) const;
  // Returns the first event with the most bytes in [from, to), which must not
  // be empty.
  size_t HighestIn(size_t from, size_t to) const;
  size_t highest() const { return highest_; }

  // Reduces the curve of a step of `end_ns` to the columns of a screen; `window`
  // must be valid.
  //
  //   bytes            an event holds until the next one, the last one until
  //     |   __         `end_ns`. Every column keeps the largest and the smallest
  //     |__|  |___     value of the function within it, so even a peak of zero
  //     +---------     duration is visible at any zoom.
  v1::Curve Draw(int64_t end_ns, const FoldWindow& window) const;

  size_t MemoryBytes() const;

 private:
  struct Extremes {
    int64_t most = 0;
    int64_t least = 0;
  };
  Extremes Within(size_t from, size_t to) const;

  std::vector<int64_t> times_;
  std::vector<int64_t> bytes_;
  std::vector<std::vector<Extremes>> levels_;
  size_t highest_ = 0;
};

}  // namespace reprise::server
