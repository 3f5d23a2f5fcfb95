// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "planner/construct/construct.h"
#include "planner/construct/greedy.h"
#include "planner/construct/unwind.h"
#include "planner/search/search.h"

namespace reprise::planner {

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
      if (!execs.empty() && AddAndHold(execs, "unwind")) found = true;
    }
    if (found) return;
  }
}

void Search::Squeeze(int64_t ticks) {
  for (const int distance_power : {1, 2}) {
    if (effort_.Over()) return;
    const GreedyOptions options{.budget_bytes = request_.budget_bytes,
                                .distance_power = distance_power,
                                .most_ticks = ticks};
    const std::vector<OpId> execs = NextUseGreedy(problem_, options, effort_);
    if (!execs.empty() && AddAndHold(execs, "next-use")) return;
  }
}

bool Search::AddAndHold(const std::vector<OpId>& execs, const char* solver) {
  if (AddExecs(execs, solver) == Score::kWorst) return false;
  AddExecs(
      HoldMore(problem_, request_.budget_bytes, execs, scale_ / 8, effort_),
      solver);
  return true;
}

StatusOr<Evaluation> Search::EvaluateExecs(
    const std::vector<OpId>& execs) const {
  return Evaluate(
      *problem_.graph,
      WithFrees(*problem_.graph, execs, problem_.capabilities.free_policy),
      problem_.capabilities);
}

int64_t Search::AddExecs(const std::vector<OpId>& execs, const char* solver) {
  const StatusOr<Evaluation> evaluation = EvaluateExecs(execs);
  if (!evaluation.ok()) return Score::kWorst;
  archive_.Add(evaluation->peak_bytes, evaluation->time_ns, execs, solver);
  return evaluation->time_ns;
}

}  // namespace reprise::planner
