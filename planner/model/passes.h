// SPDX-License-Identifier: Apache-2.0
//
// What each pass of a search cost and gained. A pass is one algorithm of the
// portfolio (solve.cc has the list): constructions and searches lower the time
// of the best plan, windows raise the bound. A pass that runs several times has
// one line. Ticks of the lines add up to those of the search; gains to what
// lies between the first plan and the last, and between no bound and the last.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

namespace reprise::planner {

// A line of the list.
struct PassRule {
  std::string_view stage;  // first, round, far or last: solve.cc
  std::string_view name;   // one name may come several times
  std::string_view when;   // it is worth a try
  int share_64 = 0;  // of the ticks of its stage, in 1/64; 0: what it takes
};

struct PassLine {
  std::string_view name;  // a literal
  int runs = 0;
  int64_t ticks = 0;
  // It found the first plan, which adds this much time; negative: it did not.
  int64_t first_added_ns = -1;
  // By how much the added time of the best plan fell, and the bound rose, while
  // it ran.
  int64_t plan_gain_ns = 0;
  int64_t bound_gain_ns = 0;
};

class PassLog {
 public:
  // What is known before or after a pass.
  struct State {
    int64_t ticks = 0;
    int64_t added_ns = -1;  // of the best plan; negative: none
    int64_t bound_ns = 0;
  };
  // What was there before the first pass.
  void Begin(const State& now) { last_ = now; }
  // Books all that changed since the last line was booked.
  void Add(std::string_view name, const State& now);
  int Runs(std::string_view name) const;
  bool FoundFirst(std::string_view name) const;
  // In the order of their first runs.
  const std::vector<PassLine>& lines() const { return lines_; }

 private:
  const PassLine* Find(std::string_view name) const;

  State last_;
  std::vector<PassLine> lines_;
};

}  // namespace reprise::planner
