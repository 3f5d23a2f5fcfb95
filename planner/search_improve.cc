// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "planner/local_search.h"
#include "planner/neighbourhood.h"
#include "planner/search.h"

namespace reprise::planner {
namespace {

// In larger steps the last hundredths of a percent cost too much.
constexpr int kMostPolishedOps = 1500;
// Rounds of annealing without a gain after which neighbourhoods are tried.
constexpr int kStalledRounds = 3;
// They get the ticks of a round, or as little as this part of them.
constexpr int64_t kMostParts = 32;
// With less a single one may take more than all that is left.
constexpr int64_t kFewestAroundTicks = 1'000'000;

}  // namespace

void Search::Improve() {
  int64_t ticks = std::max<int64_t>(scale_ / 6, 1);
  int stalled = 0;  // rounds without a gain
  for (int round = 0;; ++round) {
    if (request_.until_stopped) effort_.AllowAtLeast(5 * ticks + 5 * scale_);
    effort_.Spend(1000);  // a round without a single candidate ends too
    if (Best() == nullptr && !squeezed_ &&
        (round >= 2 || effort_.ticks() > scale_ / 2)) {
      squeezed_ = true;
      Squeeze();
    }
    if (Best() == nullptr && round >= 2) {
      SearchPebbling(std::max(4 * ticks, 4 * scale_));
    }
    if (problem_.op_count > kMostPolishedOps) ImproveBlocks(ticks);
    if (Done()) break;
    std::vector<OpId> execs = BaseExecs();
    int hot = kHot;
    if (round % 4 == 3 && !starts_.empty()) {
      execs = starts_[static_cast<size_t>(round / 4) % starts_.size()];
      hot += 1;
    } else if (round % 2 == 1 && Best() != nullptr) {
      execs = Best()->execs;
      hot += 2;
    }
    const int64_t before = BestAdded();
    const LocalSearchOptions options{
        .budget_bytes = request_.budget_bytes,
        .ticks = std::min(ticks, effort_.most_ticks() - effort_.ticks()),
        .seed = random_.Next(),
        .good_enough_ns = GoodEnough(),
        .hot = hot,
    };
    LocalSearch(problem_, options, execs, archive_, effort_);
    Report();
    stalled = BestAdded() < before ? 0 : stalled + 1;
    if (stalled >= kStalledRounds) {
      SearchAround(ticks);
      stalled = 0;
    }
    if (!Done()) CertifyIncumbent();
    if (round % 2 == 1) {
      Sharpen(ticks / 4);
      ticks = ticks * 3 / 2;
    }
  }
}

void Search::ImproveBlocks(int64_t ticks) {
  if (block_plan_ == nullptr || block_plan_->empty() || Done()) return;
  const Score score{.budget_bytes = request_.budget_bytes,
                    .base_time_ns = problem_.base.time_ns,
                    .base_peak_bytes = problem_.base.peak_bytes};
  block_plan_->Improve(score, random_.Next(), ticks, GoodEnough(), generator_,
                       archive_, effort_);
  Report();
}

void Search::SearchAround(int64_t ticks) {
  if (Best() == nullptr || Done() || !MipAvailable()) return;
  if (ticks / around_part_ < kFewestAroundTicks) return;
  if (blocks_ == nullptr) {
    blocks_ = std::make_unique<Blocks>(FindBlocks(problem_));
  }
  std::vector<OpId> execs = Best()->execs;
  const NeighbourhoodOptions options{.budget_bytes = request_.budget_bytes,
                                     .ticks = ticks / around_part_,
                                     .seed = request_.seed + ++around_,
                                     .good_enough_ns = GoodEnough()};
  const int64_t before = BestAdded();
  SearchNeighbourhoods(problem_, *blocks_, options, execs, archive_, effort_);
  around_part_ = BestAdded() < before ? std::max<int64_t>(1, around_part_ / 2)
                                      : std::min(kMostParts, 2 * around_part_);
  Report();
}

void Search::Polish() {
  const int64_t share = scale_ / 16;
  if (Best() == nullptr || effort_.Over() || Proven()) return;
  if (problem_.op_count > kMostPolishedOps) return;
  certificate_.Sharpen(BestAdded(), share);
  Combine(share);
  const int64_t optimum = problem_.base.time_ns + certificate_.added_ns();
  if (!Proven()) {
    std::vector<OpId> execs = Best()->execs;
    const LocalSearchOptions options{.budget_bytes = request_.budget_bytes,
                                     .ticks = share,
                                     .seed = random_.Next(),
                                     .good_enough_ns = optimum,
                                     .hot = 10};
    LocalSearch(problem_, options, execs, archive_, effort_);
  }
  if (!Proven()) {
    CertifyIncumbent();
    certificate_.Sharpen(BestAdded(), share);
    Combine(share);
  }
  Report();
}

}  // namespace reprise::planner
