// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <memory>

#include "planner/construct/construct.h"
#include "planner/construct/strategy.h"
#include "planner/search/local_search.h"
#include "planner/search/search.h"

namespace reprise::planner {
namespace {

// For windows of the base order, regardless of the size of the step.
constexpr int64_t kMostBaseTicks = 25'000'000;
// In smaller steps, the search over lists of execs finds everything.
constexpr int kFewestBlockOps = 400;

}  // namespace

void Search::AddStart(const Flags& flags) {
  if (generator_.Generate(flags).valid) {
    starts_.push_back(generator_.execs());
  }
  effort_.Spend(problem_.op_count);
}

void Search::CertifyBaseOrder(int64_t ticks) {
  // In small steps, a tree over few windows proves more than many windows do one
  // by one: the highest peaks first, and only those. A search for plans needs no
  // more than that.
  const bool only_peaks =
      request_.part == Part::kImprove ||
      (HasFewOps() && HasLpSolver() && log_.Runs("base-windows") == 0);
  const int64_t most = only_peaks ? 0 : kMostBaseTicks;
  CertifyBase(problem_, request_.budget_bytes, std::min(ticks, most),
              certificate_, effort_);
}

void Search::AddStrategies(int64_t) {
  if (!known_.has_strategies) {
    const int64_t before = generator_.ticks();
    planner::AddStrategies(problem_, generator_, archive_);
    effort_.Spend(generator_.ticks() - before);
    known_.has_strategies = true;
  }
}

void Search::AddChains(int64_t) {
  for (const Archive::Point& schedule :
       known_.chains.For(request_.budget_bytes, generator_, effort_)) {
    archive_.Add(schedule);
  }
}

void Search::Construct(int64_t ticks) {
  for (const Retention tail : {Retention::kAgain, Retention::kSave}) {
    if (Done()) break;
    // A cut of a long step is expensive.
    ConstructOptions options{.budget_bytes = request_.budget_bytes,
                             .ticks = HasFewOps() ? 0 : 2 * ticks,
                             .tail = tail};
    Flags flags = FromCuts(problem_, options, certificate_, generator_,
                           archive_, effort_);
    if (!Done()) {
      Restore(problem_, ScoreOf(), ticks, generator_, flags, archive_, effort_);
    }
    AddStart(flags);
  }
  // What fits in less also fits here, and is sometimes better.
  for (const int percent : {90, 80, 70}) {
    if (Done() || Best() == nullptr) break;
    const int64_t before = BestAdded();
    ConstructOptions options{
        .budget_bytes =
            problem_.static_bytes +
            (request_.budget_bytes - problem_.static_bytes) / 100 * percent};
    Flags flags = FromCuts(problem_, options, certificate_, generator_,
                           archive_, effort_);
    if (BestAdded() < before) AddStart(flags);
  }
}

void Search::ConstructBlocks(int64_t ticks) {
  if (problem_.op_count < kFewestBlockOps) return;
  if (certificate_.tried().empty()) return;
  block_plan_ = std::make_unique<BlockPlan>(
      problem_, FindBlocks(problem_), certificate_.TriedByBound().front());
  effort_.Spend(problem_.op_count);
  if (!block_plan_->empty()) {
    block_plan_->Fit(request_.budget_bytes, certificate_, generator_, archive_,
                     effort_);
    ImproveBlocks(ticks);
  }
  if (!block_plan_->empty()) AddStart(block_plan_->MakeFlags());
}

void Search::FindAny(int64_t ticks) {
  std::vector<OpId> execs = BaseExecs(*problem_.graph);
  const LocalSearchOptions options{.budget_bytes = request_.budget_bytes,
                                   .ticks = ticks,
                                   .seed = random_.Next(),
                                   .good_enough_ns = GoodEnough(),
                                   .hot = kHot};
  LocalSearch(problem_, options, execs, archive_, effort_);
}

}  // namespace reprise::planner
