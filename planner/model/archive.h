// SPDX-License-Identifier: Apache-2.0
//
// The archive: the Pareto set of (peak, time) over all valid schedules seen for
// one problem. `Best(budget)` is monotone for any content: a lower budget never
// gives a higher peak or a lower time. The archive only grows, so a later
// answer is never worse.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "planner/model/evaluate.h"

namespace reprise::planner {

class Archive {
 public:
  struct Point {
    int64_t peak_bytes = 0;
    int64_t time_ns = 0;
    std::vector<OpId> execs = {};
    std::string solver = {};
  };

  // Adds the schedule unless a known one has no higher peak and no longer time,
  // and removes those it dominates. If peak and time are equal, fewer execs
  // win. Returns whether it was added.
  bool Add(int64_t peak_bytes, int64_t time_ns, const std::vector<OpId>& execs,
           const std::string& solver);
  // The same, with the figures of an evaluation, a generated schedule or a
  // point.
  bool Add(const auto& figures, const std::vector<OpId>& execs,
           const std::string& solver) {
    return Add(figures.peak_bytes, figures.time_ns, execs, solver);
  }
  bool Add(const Point& point) { return Add(point, point.execs, point.solver); }

  // Returns the fastest schedule within the budget, or null.
  const Point* Best(int64_t budget_bytes) const;
  // Returns the schedule with the smallest peak, or null.
  const Point* Smallest() const;

 private:
  std::map<int64_t, Point> points_;  // by peak; times fall as peaks rise
};

}  // namespace reprise::planner
