// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <bit>
#include <iterator>
#include <utility>

#include "planner/search/local_search.h"
#include "planner/search/search.h"

namespace reprise::planner {
namespace {

constexpr int kMostTwiceOps = 128;
constexpr int kMostHalvedOps = 256;
// First temperature of a search from keep-sets of windows; compare kHot.
constexpr int kCool = 12;

}  // namespace

void Search::Anneal(int64_t ticks) {
  // From the best plan of a long step: a quarter to a half of an op's mean time.
  const int cold = std::bit_width(static_cast<unsigned>(problem_.op_count)) + 1;
  std::vector<OpId> execs = BaseExecs(*problem_.graph);
  int hot = kHot;
  if (!near_.empty() && (HasNone() || near_score_ < Best()->time_ns)) {
    execs = std::exchange(near_, {});
    hot = cold;
    ticks *= 2;
  } else if (!HasFewOps() && Best() != nullptr) {
    execs = Best()->execs;
    hot = cold;
  } else if (round_ % 4 == 3 && !starts_.empty()) {
    execs = starts_[static_cast<size_t>(round_ / 4) % starts_.size()];
    hot += 1;
  } else if (round_ % 2 == 1 && Best() != nullptr) {
    execs = Best()->execs;
    hot += 2;
  } else if (round_ >= 4) {
    hot += 1 + round_ / 2 % 2;  // long enough to begin cooler
  }
  const LocalSearchOptions options{
      .budget_bytes = request_.budget_bytes,
      .ticks = std::min(ticks, effort_.most_ticks() - effort_.ticks()),
      .seed = random_.Next(),
      .good_enough_ns = Aim(),
      .hot = hot,
  };
  LocalSearch(problem_, options, execs, archive_, effort_);
}

void Search::AnnealFirst(int64_t ticks) {
  // For the smallest steps, two short annealings find more than one; of somewhat
  // larger ones, two threads run half of one each.
  const bool is_smallest = problem_.op_count <= kMostTwiceOps;
  const bool is_halved =
      !is_smallest && problem_.op_count <= kMostHalvedOps && IsShared();
  AnnealEach(
      is_smallest || is_halved ? 2 : 1, [this] { return Done(); },
      [&](size_t run) -> AnnealingRun {
        return {.execs = BaseExecs(*problem_.graph),
                .options = {.budget_bytes = request_.budget_bytes,
                            .ticks = ticks / (is_halved ? 4 : 2),
                            .seed = request_.seed + run,
                            .good_enough_ns = GoodEnough(),
                            .hot = kHot}};
      });
}

void Search::AnnealStarts(int64_t ticks) {
  // A later call uses other random numbers.
  const auto runs = static_cast<uint64_t>(log_.Runs("near-windows"));
  const uint64_t seed = request_.seed + 1 + 64 * runs;
  // The latest start comes first and gets most of the effort.
  constexpr int kHots[] = {kCool, kCool + 2, kCool + 1};
  constexpr size_t kOfLatest = std::size(kHots);
  AnnealEach(
      kOfLatest + starts_.size() - 1,
      [this] { return effort_.Over() || Proven(); },
      [&](size_t run) -> AnnealingRun {
        const bool latest = run < kOfLatest;
        return {
            .execs = latest ? starts_.front() : starts_[run - kOfLatest + 1],
            .options = {.budget_bytes = request_.budget_bytes,
                        .ticks = latest ? ticks / 4 : ticks / 4 / kMostStarts,
                        .seed = seed + run,
                        .good_enough_ns = Aim(),
                        .hot = latest ? kHots[run] : kCool}};
      });
}

void Search::ImproveBlocks(int64_t ticks) {
  const int64_t before_ns = BestAdded();
  const bool patient = !HasFewOps() && block_moves_gain_;
  block_plan_->Improve(ScoreOf(), random_.Next(), ticks, patient, GoodEnough(),
                       generator_, archive_, effort_);
  block_moves_gain_ = BestAdded() < before_ns;
}

}  // namespace reprise::planner
