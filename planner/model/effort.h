// SPDX-License-Identifier: Apache-2.0
//
// Effort: ticks spent, ticks allowed, and requests to stop.
//
// A tick is one op or arc visited, in every algorithm; the same request spends
// the same ticks on every machine. should_stop and on_progress are called only
// between candidates, so a run that they do not end is reproducible.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>

namespace reprise::planner {

class Effort {
 public:
  Effort(int64_t most_ticks, const std::function<bool()>& should_stop)
      : most_ticks_(most_ticks), should_stop_(should_stop) {}

  // Adds to the ticks spent, and calls should_stop every 50,000 ticks.
  void Spend(int64_t ticks) {
    ticks_ += ticks;
    if (should_stop_ && ticks_ >= next_question_) {
      next_question_ = ticks_ + kTicksPerQuestion;
      if (should_stop_()) interrupted_ = true;
    }
  }
  // Asks should_stop immediately, regardless of ticks: for solvers that do not
  // count any.
  bool StopNow() {
    if (should_stop_ && !interrupted_) interrupted_ = should_stop_();
    return interrupted_;
  }
  // True if the ticks are spent or the caller asked to stop.
  bool Over() const { return interrupted_ || ticks_ >= most_ticks_; }
  // Allows at least `ticks` more than are spent. To stay reproducible, the
  // caller must not decide this by time.
  void AllowAtLeast(int64_t ticks) {
    most_ticks_ = std::max(most_ticks_, ticks_ + ticks);
  }
  const std::function<bool()>& should_stop() const { return should_stop_; }
  bool interrupted() const { return interrupted_; }
  int64_t ticks() const { return ticks_; }
  int64_t most_ticks() const { return most_ticks_; }

 private:
  static constexpr int64_t kTicksPerQuestion = 50'000;

  int64_t most_ticks_;
  const std::function<bool()>& should_stop_;
  int64_t ticks_ = 0;
  int64_t next_question_ = 0;
  bool interrupted_ = false;
};

}  // namespace reprise::planner
