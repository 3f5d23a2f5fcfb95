// SPDX-License-Identifier: Apache-2.0
#include "planner/model/archive.h"

namespace reprise::planner {

bool Archive::Add(int64_t peak_bytes, int64_t time_ns,
                  const std::vector<OpId>& execs, const std::string& solver) {
  auto after = points_.upper_bound(peak_bytes);
  if (after != points_.begin()) {
    const Point& known = std::prev(after)->second;
    const bool equal = known.peak_bytes == peak_bytes &&
                       known.time_ns == time_ns &&
                       known.execs.size() > execs.size();
    if (known.time_ns <= time_ns && !equal) return false;
  }
  auto first = points_.lower_bound(peak_bytes);
  while (first != points_.end() && first->second.time_ns >= time_ns) {
    first = points_.erase(first);
  }
  points_[peak_bytes] = {peak_bytes, time_ns, execs, solver};
  return true;
}

const Archive::Point* Archive::Best(int64_t budget_bytes) const {
  const auto after = points_.upper_bound(budget_bytes);
  return after == points_.begin() ? nullptr : &std::prev(after)->second;
}

const Archive::Point* Archive::Smallest() const {
  return points_.empty() ? nullptr : &points_.begin()->second;
}

}  // namespace reprise::planner
