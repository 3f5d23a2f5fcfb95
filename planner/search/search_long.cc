// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <iterator>
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
// Ways to cut for fitting segments, in the order they are tried: what the cut
// leaves free for bursts, as a divisor of the budget (0: nothing); whether it
// pays less for values near the turn; and how far above the budget the schedule
// may be before its repair, as a divisor. If the first finds no plan, segments
// fit nowhere; no more are tried after so many without a better schedule.
constexpr struct {
  int64_t free_part;
  bool is_tilted;
  int64_t over_part;
} kFits[] = {{64, false, 200},  {0, true, 50},   {64, true, 50},
             {128, false, 200}, {0, false, 200}, {128, true, 50},
             {32, false, 200},  {32, true, 50},  {16, false, 200},
             {16, true, 50}};
constexpr int kMostWorseFits = 3;
// A cut that saves other ends keeps other values, so segments are fitted again,
// until the ends are the same as before or so many cuts gave nothing better.
constexpr int kMostIdleCuts = 3;
// Schedules of cuts that cost more above the best plan than this part of it are
// not repaired.
constexpr int64_t kFarPart = 32;
// Bisections of the budget that segments are fitted to.
constexpr int kFitSteps = 6;
// How often the room of one count is reduced.
constexpr int kMostRepairRounds = 3;
// Part of the ticks that one repair may take.
constexpr int64_t kRepairPart = 8;

}  // namespace

void Search::ConstructSegments(int64_t ticks) {
  if (certificate_.tried().empty()) return;
  const OpId at = certificate_.TriedByBound().front();
  // Of long steps, the first round looks for a plan, later ones for better starts.
  const int part = HasFewOps() ? 8 : round_ == 0 ? 1 : 4;
  const int64_t end = effort_.ticks() + ticks / part;
  repair_ticks_ = ticks / kRepairPart;
  while (!fits_.done) {
    if (effort_.Over() || effort_.ticks() > end || Done()) return;
    FitSegments(at);
    if (fits_.way.idle_cuts < kMostIdleCuts) continue;
    fits_.worse = fits_.way.time_ns < fits_.best_ns ? 0 : fits_.worse + 1;
    fits_.best_ns = std::min(fits_.best_ns, fits_.way.time_ns);
    fits_.done = fits_.best_ns == Score::kWorst ||
                 fits_.worse >= kMostWorseFits ||
                 ++fits_.next == static_cast<int>(std::size(kFits));
    fits_.way = {};
  }
  if (fits_.best_ns == Score::kWorst) ConstructEven(at, end);
}

void Search::FitSegments(OpId at) {
  const int64_t budget = request_.budget_bytes;
  const auto [free_part, is_tilted, over_part] = kFits[fits_.next];
  const int64_t free_bytes = budget - problem_.static_bytes;
  const int64_t room = budget - (free_part == 0 ? 0 : free_bytes / free_part);
  const std::vector<int64_t> priced =
      is_tilted ? CheaperNearTurn(problem_) : std::vector<int64_t>();
  Fits::Way& way = fits_.way;
  ++way.idle_cuts;
  const WindowResult cut = certificate_.KeepSetFor(at, room, way.ends, priced);
  if (!cut.has_keep_set) {
    way.idle_cuts = kMostIdleCuts;
    return;
  }
  // FittingEnds estimates memory: bisection between 85 and 110 % finds the
  // largest budget to give it so that the schedule fits, or nearly. Without a
  // keep-set too much had to be saved: the bursts need more.
  KeepSet best;
  int64_t low = budget / 20 * 17;
  int64_t high = budget / 10 * 11;
  std::vector<ValueId> next;
  for (int step = 0; step < kFitSteps; ++step) {
    if (effort_.Over() || Done()) return;
    const int64_t middle = low + (high - low) / 2;
    std::vector<ValueId> tried =
        FittingEnds(problem_, cut.keep_set, way.ends, middle, effort_);
    const WindowResult fitted =
        certificate_.KeepSetFor(at, room, tried, priced);
    const bool fits =
        fitted.has_keep_set &&
        GenerateKeeping({fitted.keep_set}, Retention::kShare).peak_bytes <=
            budget + budget / over_part;
    (fits || !fitted.has_keep_set ? low : high) = middle;
    if (next.empty() || fits) next = std::move(tried);
    if (fits &&
        (best.recomputed.empty() || fitted.keep_set.cost_ns < best.cost_ns)) {
      best = fitted.keep_set;
    }
  }
  const int64_t added_ns = BestAdded();
  const bool is_first =
      std::min(fits_.best_ns, way.time_ns) == Score::kWorst || HasNone();
  if (!best.recomputed.empty() &&
      (is_first || best.cost_ns - added_ns <= added_ns / kFarPart)) {
    const int64_t time_ns = RepairCut(best).time_ns;
    if (time_ns < way.time_ns) way.idle_cuts = 0;
    way.time_ns = std::min(way.time_ns, time_ns);
  }
  // From here on, the cuts would repeat.
  if (!way.seen.insert(next).second) way.idle_cuts = kMostIdleCuts;
  way.ends = std::move(next);
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
      const Repaired repaired = RepairCut(cut.keep_set);
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

Search::Repaired Search::RepairCut(const KeepSet& keep_set) {
  Repaired best;
  for (const Retention tail : {Retention::kShare, Retention::kSave}) {
    if (effort_.Over() || Done()) return best;
    const Generated generated = GenerateKeeping({keep_set}, tail);
    // To save also what only re-runs read is worth a try if it takes little
    // memory.
    if (!generated.valid || generated.peak_bytes / 51 * 50 > best.peak_before) {
      continue;
    }
    best.peak_before = std::min(best.peak_before, generated.peak_bytes);
    std::vector<OpId> nearest;
    const std::vector<OpId> execs =
        Cover(problem_, request_.budget_bytes, generator_.execs(),
              repair_ticks_, effort_, &nearest);
    if (execs.empty()) {
      const auto near = EvaluateExecs(problem_, nearest);
      if (!near.ok()) continue;
      // Bytes above the budget at about the price that annealing pays for them.
      const int64_t score = ScoreOf(1).Of({.valid = true,
                                           .time_ns = near->time_ns,
                                           .peak_bytes = near->peak_bytes});
      if (score < near_score_) near_ = std::move(nearest);
      near_score_ = std::min(near_score_, score);
      continue;
    }
    best.time_ns = std::min(best.time_ns, AddExecs(execs, "segments"));
  }
  return best;
}

}  // namespace reprise::planner
