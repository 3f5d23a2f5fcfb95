// SPDX-License-Identifier: Apache-2.0
//
// What each pass of a search cost and gained. A pass is one algorithm of the
// portfolio (listed in solve.cc): constructions and searches lower the time of
// the best plan, windows raise the bound. A pass that runs several times has
// one line. The ticks of all lines add up to those of the search; their gains
// add up to the difference between the first plan and the last, and to the last
// bound.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

namespace reprise::planner {

// One row of the portfolio's list.
struct PassRule {
  std::string_view stage;  // first, round, far or last: solve.cc
  std::string_view name;   // a name may occur several times
  std::string_view when;   // when the pass is worthwhile
  int share_64 = 0;        // part of its stage's ticks, in 1/64; 0: as needed
};

struct PassLine {
  std::string_view name;  // a literal
  int runs = 0;
  int64_t ticks = 0;
  // The added time of the first plan, if this pass found it; otherwise
  // negative.
  int64_t first_added_ns = -1;
  // How much the added time of the best plan fell, and the bound rose, while
  // the pass ran.
  int64_t plan_gain_ns = 0;
  int64_t bound_gain_ns = 0;
};

class PassLog {
 public:
  // The state of the search before or after a pass.
  struct State {
    int64_t ticks = 0;
    int64_t added_ns = -1;  // of the best plan; negative: none
    int64_t bound_ns = 0;
  };
  // Sets the state before the first pass.
  void Begin(const State& now) { last_ = now; }
  // Adds everything that changed since the last call to the line of this pass.
  void Add(std::string_view name, const State& now);
  // Returns how often a pass has run.
  int Runs(std::string_view name) const;
  // Returns whether a pass found the first plan.
  bool FoundFirst(std::string_view name) const;
  // In the order of their first runs.
  const std::vector<PassLine>& lines() const { return lines_; }

 private:
  const PassLine* Find(std::string_view name) const;

  State last_;
  std::vector<PassLine> lines_;
};

}  // namespace reprise::planner
