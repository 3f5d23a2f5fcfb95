// SPDX-License-Identifier: Apache-2.0
#include "server/service/memory/memory_curve.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "base/str_cat.h"

namespace reprise::server {
namespace {

constexpr size_t kLeaf = 64;
constexpr size_t kCurveFan = 16;

}  // namespace

MemoryCurve::MemoryCurve(std::vector<int64_t> times, std::vector<int64_t> bytes,
                         size_t first)
    : times_(std::move(times)), bytes_(std::move(bytes)) {
  std::vector<Extremes> level;
  for (size_t at = 0; at < bytes_.size(); at += kLeaf) {
    const auto [least, most] = std::minmax_element(
        bytes_.begin() + static_cast<ptrdiff_t>(at),
        bytes_.begin() +
            static_cast<ptrdiff_t>(std::min(at + kLeaf, bytes_.size())));
    level.push_back({*most, *least});
  }
  while (level.size() > 1) {
    std::vector<Extremes> above;
    for (size_t i = 0; i < level.size(); i += kCurveFan) {
      Extremes all = level[i];
      for (size_t k = i; k < std::min(i + kCurveFan, level.size()); ++k) {
        all.most = std::max(all.most, level[k].most);
        all.least = std::min(all.least, level[k].least);
      }
      above.push_back(all);
    }
    levels_.push_back(std::exchange(level, std::move(above)));
  }
  if (!level.empty()) levels_.push_back(std::move(level));
  if (!bytes_.empty()) highest_ = HighestIn(first, bytes_.size());
}

MemoryCurve::Extremes MemoryCurve::Within(size_t from, size_t to) const {
  Extremes all{std::numeric_limits<int64_t>::min(),
               std::numeric_limits<int64_t>::max()};
  const auto add = [&](const Extremes& one) {
    all.most = std::max(all.most, one.most);
    all.least = std::min(all.least, one.least);
  };
  while (from < to && from % kLeaf != 0) {
    add({bytes_[from], bytes_[from]});
    ++from;
  }
  while (from < to && to % kLeaf != 0) {
    --to;
    add({bytes_[to], bytes_[to]});
  }
  from /= kLeaf;
  to /= kLeaf;
  // What is left are whole leaves: walk up, taking the ends that have no whole
  // parent.
  for (size_t level = 0; from < to; ++level) {
    const std::vector<Extremes>& nodes = levels_[level];
    const bool top = level + 1 == levels_.size();
    while (from < to && (top || from % kCurveFan != 0)) add(nodes[from++]);
    while (from < to && to % kCurveFan != 0) add(nodes[--to]);
    from /= kCurveFan;
    to /= kCurveFan;
  }
  return all;
}

size_t MemoryCurve::EventAt(int64_t time_ns) const {
  const auto after = std::upper_bound(times_.begin(), times_.end(), time_ns);
  return after == times_.begin()
             ? 0
             : static_cast<size_t>(after - times_.begin()) - 1;
}

size_t MemoryCurve::HighestIn(size_t from, size_t to) const {
  const int64_t most = Within(from, to).most;
  // Halve the range: its first half has the value, or the second does.
  while (to - from > 1) {
    const size_t middle = from + (to - from) / 2;
    if (Within(from, middle).most == most) {
      to = middle;
    } else {
      from = middle;
    }
  }
  return from;
}

v1::Curve MemoryCurve::Draw(int64_t end_ns, const FoldWindow& window) const {
  v1::Curve curve;
  curve.set_step_ns(end_ns);
  if (times_.empty()) return curve;
  curve.set_peak_bytes(std::max<int64_t>(bytes_[highest_], 0));
  if (bytes_[highest_] > 0) {
    curve.set_peak_at_ns(std::max<int64_t>(times_[highest_], 0));
  }
  const FoldColumns columns = ColumnsOf(end_ns, window);
  curve.set_start_ns(columns.from_ns);
  curve.set_column_ns(columns.column_ns);
  curve.mutable_max_bytes()->Reserve(static_cast<int>(columns.count));
  curve.mutable_min_bytes()->Reserve(static_cast<int>(columns.count));

  auto next = static_cast<size_t>(
      std::lower_bound(times_.begin(), times_.end(), columns.from_ns) -
      times_.begin());
  for (int64_t i = 0; i < columns.count; ++i) {
    const int64_t begin = columns.from_ns + i * columns.column_ns;
    const auto end = static_cast<size_t>(
        std::lower_bound(times_.begin() + static_cast<ptrdiff_t>(next),
                         times_.end(), begin + columns.column_ns) -
        times_.begin());
    // The old value counts only if it lasts into the column.
    const bool lasts = next >= times_.size() || times_[next] > begin;
    const size_t first = lasts && next > 0 ? next - 1 : next;
    const Extremes all = first < end ? Within(first, end)
                                     : Extremes{bytes_.front(), bytes_.front()};
    curve.add_max_bytes(all.most);
    curve.add_min_bytes(all.least);
    next = end;
  }
  return curve;
}

size_t MemoryCurve::MemoryBytes() const {
  size_t bytes = (times_.capacity() + bytes_.capacity()) * sizeof(int64_t);
  for (const auto& level : levels_)
    bytes += level.capacity() * sizeof(Extremes);
  return bytes;
}

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

}  // namespace reprise::server
