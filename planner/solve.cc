// SPDX-License-Identifier: Apache-2.0
#include "planner/solve.h"

#include <algorithm>

#include "planner/burst.h"
#include "planner/construct.h"
#include "planner/executor.h"
#include "planner/search.h"

namespace reprise::planner {
namespace {

// Of the windows of the base order, whatever the size of the step.
constexpr int64_t kMostBaseTicks = 25'000'000;
// More effort where the first schedule was hard to find.
constexpr int64_t kTightScales = 2;
// Larger steps end with the effort that they begin with.
constexpr int kMostFarOps = 10'000;

}  // namespace

Solution Search::Run() {
  if (problem_.base.peak_bytes <= request_.budget_bytes) return {};
  if (!certificate_.impossible()) {
    CertifyBase(problem_, request_.budget_bytes,
                std::min(scale_ / 8, kMostBaseTicks), certificate_, effort_);
  }
  if (certificate_.impossible()) return Refuse();
  Report();
  AddStrategies();
  Construct();
  ConstructBlocks();
  if (Best() == nullptr) {
    certificate_.TryPebbling(scale_ / 16);
    if (certificate_.impossible()) return Refuse();
  }
  // Of graphs with versions the main search finds tighter schedules than of
  // others, sooner.
  const bool is_plain = IsPlain(problem_);
  if (Best() == nullptr && !is_plain) FindAny();
  if (Best() == nullptr) UnwindFromMarks(scale_ * 3 / 4);
  if (IsTight()) TakeApart(scale_ / 16);
  if (Best() == nullptr && is_plain) FindAny();
  Sharpen(scale_ / 8);
  if (IsTight() && problem_.op_count <= kMostBeamOps) Squeeze();
  Improve();
  if (Best() != nullptr && request_.max_ticks == 0 &&
      (is_plain ? IsTight() : IsFar())) {
    // Far from what is best: worth the same effort again.
    effort_.AllowAtLeast(kTightScales * scale_);
    // A schedule found another way now and then is a better start.
    if (!IsTight()) UnwindFromMarks(scale_ / 2);
    Improve();
  }
  if (Best() == nullptr && request_.max_ticks == 0) {
    // Nothing fits yet and nobody limited the effort: a plan late is worth
    // more than none.
    for (int round = 0; round < 3 && Best() == nullptr; ++round) {
      effort_.AllowAtLeast(scale_ * 9);
      SearchPebbling(scale_ * 8);
    }
    effort_.AllowAtLeast(scale_);
    Improve();
  }
  Polish();
  return {.added_ns = certificate_.added_ns(),
          .source = certificate_.source(),
          .impossible = false,
          .infeasible = certificate_.infeasible()};
}

Solution Search::Refuse() {
  const Infeasible infeasible =
      ProveMore(problem_, certificate_.infeasible(), scale_ / 32, effort_);
  const int64_t least = infeasible.smallest_budget_bytes;
  for (const int64_t percent : {100, 105, 120}) {
    const int64_t budget =
        least + (problem_.base.peak_bytes - least) * (percent - 100) / 100;
    const Archive::Point* smallest = archive_.Smallest();
    if (smallest != nullptr && smallest->peak_bytes <= budget) break;
    ConstructOptions options{.budget_bytes = budget, .rounds = 20};
    FromCuts(problem_, options, certificate_, generator_, archive_, effort_);
  }
  return {.added_ns = 0,
          .source = {},
          .impossible = true,
          .infeasible = certificate_.infeasible().smallest_budget_bytes >
                                infeasible.smallest_budget_bytes
                            ? certificate_.infeasible()
                            : infeasible};
}

bool Search::IsFar() const {
  return problem_.op_count <= kMostFarOps && Best()->time_ns > GoodEnough() &&
         BestAdded() - certificate_.added_ns() > problem_.base.time_ns / 50;
}

Solution Solve(const Problem& problem, const Request& request, Known& known,
               Effort& effort) {
  if (problem.capabilities.execution == Execution::kFree) {
    return Search(problem, request, known, effort).Run();
  }
  // Any schedule under the same rules: its bound holds for the executor, and
  // its plans are where the executor's own begin.
  Known any(problem);
  const int64_t half = effort.most_ticks() / 2;
  Effort first(half, effort.should_stop());
  Solution solution = Search(problem, request, any, first).Run();
  effort.Spend(first.ticks());
  if (!solution.impossible) {
    SearchRegions(problem, request.budget_bytes, solution.added_ns, request,
                  any.archive, known.generator, known.archive, effort);
  }
  return solution;
}

}  // namespace reprise::planner
