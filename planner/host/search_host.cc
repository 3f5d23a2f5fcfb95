// SPDX-License-Identifier: Apache-2.0
#include "planner/host/search_host.h"

#include <algorithm>
#include <functional>

namespace reprise::planner {
namespace {

// Walks over a list that placing and evaluating it takes.
constexpr int64_t kWalks = 20;
// First temperature: 2^-11 of the base time.
constexpr int kCool = 11;
constexpr int kMostRemoved = 6, kMostRemade = 12;

}  // namespace

int64_t HostSearch::Try(const std::vector<OpId>& execs) {
  int64_t score = TryPlaced(execs, false);
  if (has_whole_) score = std::min(score, TryPlaced(execs, true));
  return score;
}

int64_t HostSearch::TryPlaced(const std::vector<OpId>& execs, bool whole_last) {
  effort_.Spend(kWalks * static_cast<int64_t>(execs.size()));
  Schedule schedule = PlaceCopies(problem_, execs, budget_bytes_, whole_last);
  const auto evaluation =
      Evaluate(*problem_.graph, schedule, problem_.capabilities);
  if (!evaluation.ok()) return Score::kWorst;
  const int64_t score = score_.Of({.valid = true,
                                   .time_ns = evaluation->time_ns,
                                   .peak_bytes = evaluation->peak_bytes});
  if (score < best_score_) {
    best_score_ = score;
    best_ = std::move(schedule);
    evaluation_ = *evaluation;
    best_execs_ = execs;
  }
  return score;
}

bool HostSearch::Remove(std::vector<OpId>& execs) {
  std::vector<uint8_t> ran(problem_.op_count, 0);
  std::vector<size_t> again;
  for (size_t at = 0; at < execs.size(); ++at) {
    if (ran[execs[at]] != 0) again.push_back(at);
    ran[execs[at]] = 1;
  }
  if (again.empty()) return false;
  size_t first = random_.Below(static_cast<int64_t>(again.size()));
  const size_t count = 1 + random_.Below(kMostRemoved);
  size_t last = first;
  while (last + 1 < again.size() && last + 1 < first + count &&
         again[last + 1] == again[last] + 1) {
    ++last;
  }
  execs.erase(execs.begin() + static_cast<int64_t>(again[first]),
              execs.begin() + static_cast<int64_t>(again[last]) + 1);
  return true;
}

bool HostSearch::Remake(std::vector<OpId>& execs) {
  const Versions& versions = problem_.versions;
  const auto reader =
      static_cast<size_t>(random_.Below(static_cast<int64_t>(execs.size())));
  const auto need = versions.Need(execs[reader]);
  if (need.empty()) return false;
  const ValueId wanted = need[random_.Below(static_cast<int64_t>(need.size()))];
  // When storages were last used, and which op runs next for the first time.
  std::vector<size_t> used(problem_.bytes.size(), 0);
  OpId next = 0;
  for (size_t at = 0; at < reader; ++at) {
    const Op& op = problem_.graph->ops[execs[at]];
    for (const StorageId s : op.reads) used[s] = at;
    for (const StorageId s : op.writes) used[s] = at;
    if (execs[at] == next) ++next;
  }
  std::vector<OpId> burst;
  const std::function<bool(ValueId)> make = [&](ValueId v) {
    const OpId maker = versions.maker[v];
    if (burst.size() >= kMostRemade || problem_.rules.may_remake[v] == 0 ||
        !problem_.rules.MayRunAgain(maker, next)) {
      return false;
    }
    for (const ValueId u : versions.Need(maker)) {
      const StorageId s = versions.storage[u];
      // An older version of the same storage is not there any more.
      const bool older = s == versions.storage[v];
      const bool far = used[s] + 2 < reader && random_.Percent(50);
      if ((older || far) && !make(u) && older) return false;
    }
    if (std::find(burst.begin(), burst.end(), maker) == burst.end()) {
      burst.push_back(maker);
    }
    return true;
  };
  if (used[versions.storage[wanted]] + 2 >= reader || !make(wanted)) {
    return false;
  }
  execs.insert(execs.begin() + static_cast<int64_t>(reader), burst.begin(),
               burst.end());
  return true;
}

bool HostSearch::Change(std::vector<OpId>& execs) {
  switch (random_.Below(4)) {
    case 0:
      return Remake(execs);
    case 1:
      return Remove(execs) && Remake(execs);
    default:
      return Remove(execs);
  }
}

void HostSearch::Improve(int64_t ticks, int64_t enough_ns) {
  if (best_.empty() || ticks <= 0) return;
  const int64_t begin = effort_.ticks(), end = begin + ticks;
  std::vector<OpId> current = best_execs_;
  int64_t score = best_score_;
  while (!effort_.Over() && effort_.ticks() < end &&
         !(Fits() && evaluation_.time_ns <= enough_ns)) {
    effort_.Spend(1);
    std::vector<OpId> changed = current;
    if (!Change(changed)) continue;
    const int64_t now = Try(changed);
    if (now == Score::kWorst) continue;
    const __int128 heat =
        static_cast<__int128>(problem_.base.time_ns >> kCool) *
        (end - effort_.ticks()) / ticks;
    const int64_t worse =
        static_cast<int64_t>(heat * random_.Exponential16() >> 16);
    if (now > score && now - score > worse) continue;
    score = now;
    current = std::move(changed);
  }
}

}  // namespace reprise::planner
