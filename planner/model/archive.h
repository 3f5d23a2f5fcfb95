// SPDX-License-Identifier: Apache-2.0
//
// The archive: the Pareto set of (peak, time) over every valid schedule seen
// for one problem. `Best(budget)` is monotone whatever is in it: a lower
// budget never has a higher peak or a lower time. It only grows, so asking
// again never gets worse.
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
    std::vector<OpId> execs;
    std::string solver;
    RegionPlan regions = {};  // of executors that run regions
  };

  // Keeps the schedule unless a known one is as small and as fast; drops those
  // it beats. Among equals in both, fewer execs win.
  bool Add(int64_t peak_bytes, int64_t time_ns, const std::vector<OpId>& execs,
           const std::string& solver, const RegionPlan& regions = {});

  // Least time within the budget, or nothing.
  const Point* Best(int64_t budget_bytes) const;
  // The point of least peak, or nothing.
  const Point* Smallest() const;

 private:
  std::map<int64_t, Point> points_;  // by peak; times fall as peaks rise
};

}  // namespace reprise::planner
