// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "planner/construct/construct.h"
#include "planner/construct/unwind.h"
#include "planner/search/local_search.h"
#include "planner/search/search.h"

namespace reprise::planner {
namespace {

// Schedules unwound at one budget, by different random weights, and the part of
// the ticks that one of them and one annealing may take.
constexpr int kUnwoundPerBudget = 8;
constexpr int64_t kSqueezes = 16;
// First temperature of an annealing that must find room: several times what all
// re-runs of a schedule that fits may cost. Compare kHot.
constexpr int kBoiling = 4;

}  // namespace

void Search::UnwindFromMarks(int64_t ticks) {
  const int64_t begin = effort_.ticks();
  bool found = false;
  for (const int mark_percent : {97, 94, 91, 90, 88, 85, 80, 70}) {
    for (const bool by_distance : {false, true}) {
      const int64_t left = begin + ticks - effort_.ticks();
      if (effort_.Over() || left <= 0) return;
      const UnwindOptions options{.budget_bytes = request_.budget_bytes,
                                  .mark_percent = mark_percent,
                                  .by_distance = by_distance,
                                  .most_ticks = std::min(left, ticks / 3)};
      const std::vector<OpId> execs = Unwind(problem_, options, effort_);
      if (execs.empty() || AddExecs(execs, "unwind") == Score::kWorst) continue;
      AddExecs(
          HoldMore(problem_, request_.budget_bytes, execs, scale_ / 8, effort_),
          "unwind");
      found = true;
    }
    if (found) return;
  }
}

void Search::Squeeze(int64_t ticks) {
  const int64_t end = effort_.ticks() + ticks;
  for (const int percent : {100, 101, 102, 103, 104, 106, 108, 110, 115, 120}) {
    const int64_t room = request_.budget_bytes - problem_.static_bytes;
    const auto more = static_cast<int64_t>(static_cast<__int128>(room) *
                                           (percent - 100) / 100);
    for (int i = 0; i < kUnwoundPerBudget; ++i) {
      if (effort_.Over() || effort_.ticks() > end) return;
      const UnwindOptions unwind{.budget_bytes = request_.budget_bytes + more,
                                 .mark_percent = 70 + random_.Below(31),
                                 .by_distance = i % 2 == 1,
                                 .seed = random_.Next() | 1,
                                 .most_ticks = ticks / kSqueezes};
      std::vector<OpId> execs = Unwind(problem_, unwind, effort_);
      if (execs.empty()) continue;
      const LocalSearchOptions squeeze{.budget_bytes = request_.budget_bytes,
                                       .ticks = ticks / kSqueezes,
                                       .seed = random_.Next(),
                                       .good_enough_ns = GoodEnough(),
                                       .hot = kBoiling};
      LocalSearch(problem_, squeeze, execs, archive_, effort_);
      if (!HasNone()) return;
    }
  }
}

int64_t Search::AddExecs(const std::vector<OpId>& execs, const char* solver) {
  const auto evaluation = EvaluateExecs(problem_, execs);
  if (!evaluation.ok()) return Score::kWorst;
  archive_.Add(*evaluation, execs, solver);
  return evaluation->time_ns;
}

}  // namespace reprise::planner
