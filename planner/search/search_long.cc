// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <utility>
#include <vector>

#include "planner/construct/construct.h"
#include "planner/construct/cover.h"
#include "planner/construct/segments.h"
#include "planner/search/join_bursts.h"
#include "planner/search/search.h"

namespace reprise::planner {
namespace {

// Shorter segments are not tried, nor more after so many counts without a better
// schedule.
constexpr int kFewestSegmentOps = 8;
constexpr int kMostWorse = 3;
// What the cut of fitting segments leaves free for bursts, as a divisor of the
// budget; 0: nothing. If the first finds no plan, segments fit nowhere; no more
// are tried after so many without a better schedule.
constexpr int64_t kFreeParts[] = {64, 128, 0, 32, 16};
constexpr int kMostWorseRooms = 2;
// A cut that saves other ends keeps other values, so segments are fitted again.
constexpr int kFitPasses = 3;
// Bisections of the budget that segments are fitted to.
constexpr int kFitSteps = 6;
// How often the room of one count is reduced.
constexpr int kMostRepairRounds = 3;
// Part of the ticks left that one repair may take.
constexpr int64_t kRepairPart = 8;

}  // namespace

void Search::ConstructSegments(int64_t ticks) {
  if (certificate_.tried().empty()) return;
  const OpId at = certificate_.TriedByBound().front();
  const int64_t end = effort_.ticks() + ticks;
  if (!ConstructFitting(at, end)) ConstructEven(at, end);
}

bool Search::ConstructFitting(OpId at, int64_t end) {
  int64_t best_ns = Score::kWorst;
  int worse = 0;
  const int64_t free_bytes = request_.budget_bytes - problem_.static_bytes;
  for (const int64_t part : kFreeParts) {
    const int64_t reserve = part == 0 ? 0 : free_bytes / part;
    const int64_t time_ns =
        FitSegments(at, request_.budget_bytes - reserve, end);
    worse = time_ns < best_ns ? 0 : worse + 1;
    best_ns = std::min(best_ns, time_ns);
    if (best_ns == Score::kWorst || worse >= kMostWorseRooms) break;
  }
  return best_ns < Score::kWorst;
}

int64_t Search::FitSegments(OpId at, int64_t room, int64_t end) {
  const int64_t budget = request_.budget_bytes;
  int64_t best_ns = Score::kWorst;
  std::vector<ValueId> ends;
  for (int pass = 0; pass < kFitPasses; ++pass) {
    const WindowResult cut = certificate_.KeepSetFor(at, room, ends);
    if (!cut.has_keep_set) break;
    // FittingEnds estimates memory: bisection between 85 and 110 % finds the
    // largest budget to give it so that the schedule fits, or nearly. Without a
    // keep-set too much had to be saved: the bursts need more.
    KeepSet best;
    int64_t low = budget / 20 * 17;
    int64_t high = budget / 10 * 11;
    std::vector<ValueId> next;
    for (int step = 0; step < kFitSteps; ++step) {
      if (effort_.Over() || effort_.ticks() > end || Done()) return best_ns;
      const int64_t middle = low + (high - low) / 2;
      std::vector<ValueId> tried =
          FittingEnds(problem_, cut.keep_set, ends, middle, effort_);
      const WindowResult fitted = certificate_.KeepSetFor(at, room, tried);
      const bool fits =
          fitted.has_keep_set &&
          GenerateKeeping({fitted.keep_set}, Retention::kShare).peak_bytes <=
              budget + budget / 200;
      (fits || !fitted.has_keep_set ? low : high) = middle;
      if (next.empty() || fits) next = std::move(tried);
      if (fits &&
          (best.recomputed.empty() || fitted.keep_set.cost_ns < best.cost_ns)) {
        best = fitted.keep_set;
      }
    }
    if (!best.recomputed.empty()) {
      best_ns = std::min(best_ns, RepairCut(best, end).time_ns);
    }
    ends = std::move(next);
  }
  return best_ns;
}

void Search::ConstructEven(OpId at, int64_t end) {
  int64_t best_ns = Score::kWorst;
  int worse = 0;
  int count = 1;
  while (2 * count * kFewestSegmentOps <= problem_.first_backward) count *= 2;
  // 3 / 4, then 2 / 3 of that: half of it in two steps.
  for (; count > 1; count = count % 3 == 0 ? count / 3 * 2 : count / 4 * 3) {
    const std::vector<ValueId> ends = SegmentEnds(problem_, count);
    const int64_t before = best_ns;
    int64_t room = request_.budget_bytes;
    for (int round = 0; round < kMostRepairRounds; ++round) {
      if (effort_.Over() || effort_.ticks() > end || Done()) return;
      const WindowResult cut = certificate_.KeepSetFor(at, room, ends);
      if (!cut.has_keep_set) break;
      // The repair makes a schedule cheaper where its bursts leave room, but
      // seldom by more than this.
      const int64_t added_ns = BestAdded();
      if (cut.added_ns > added_ns && cut.added_ns - added_ns > added_ns / 10) {
        break;
      }
      const Repaired repaired = RepairCut(cut.keep_set, end);
      best_ns = std::min(best_ns, repaired.time_ns);
      if (repaired.peak_before == Score::kWorst) break;
      // What the bursts need in addition.
      const int64_t over = repaired.peak_before - request_.budget_bytes;
      room -= over / 2;
      if (over <= request_.budget_bytes / 1000 ||
          room <= problem_.static_bytes) {
        break;
      }
    }
    worse = best_ns < before ? 0 : worse + 1;
    if (best_ns < Score::kWorst && worse >= kMostWorse) return;
  }
}

void Search::Join(int64_t ticks) {
  if (certificate_.tried().empty()) return;
  const OpId at = certificate_.TriedByBound().front();
  const WindowResult& window = certificate_.tried().at(at);
  if (!window.has_rich_set) return;
  AddExecs(JoinBursts(problem_, request_.budget_bytes, at, PriceOf(window),
                      Best()->execs, ticks, effort_),
           "joined-bursts");
}

Search::Repaired Search::RepairCut(const KeepSet& keep_set, int64_t end) {
  Repaired best;
  for (const Retention tail : {Retention::kShare, Retention::kSave}) {
    const int64_t left = end - effort_.ticks();
    if (effort_.Over() || left <= 0 || Done()) return best;
    const Generated generated = GenerateKeeping({keep_set}, tail);
    // To save also what only re-runs read is worth a try if it takes little
    // memory.
    if (!generated.valid || generated.peak_bytes / 51 * 50 > best.peak_before) {
      continue;
    }
    best.peak_before = std::min(best.peak_before, generated.peak_bytes);
    const std::vector<OpId> execs =
        Cover(problem_, request_.budget_bytes, generator_.execs(),
              left / kRepairPart, effort_);
    if (execs.empty()) {
      // Bytes above the budget at about the price that annealing pays for them.
      const int64_t score = ScoreOf(1).Of(generated);
      if (score < near_score_) near_ = generator_.execs();
      near_score_ = std::min(near_score_, score);
      continue;
    }
    best.time_ns = std::min(best.time_ns, AddExecs(execs, "segments"));
  }
  return best;
}

}  // namespace reprise::planner
