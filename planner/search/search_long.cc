// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

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
// How often the room of one count is reduced.
constexpr int kMostRepairRounds = 3;
// Part of the ticks left that one repair may take.
constexpr int64_t kRepairPart = 8;

}  // namespace

void Search::ConstructSegments(int64_t ticks) {
  if (certificate_.tried().empty()) return;
  const OpId at = certificate_.TriedByBound().front();
  const int64_t end = effort_.ticks() + ticks;
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
