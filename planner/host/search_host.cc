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

HostSearch::Placed HostSearch::Place(const std::vector<OpId>& execs,
                                     bool whole_last) {
  effort_.Spend(kWalks * static_cast<int64_t>(execs.size()));
  Schedule schedule = PlaceCopies(problem_, execs, budget_bytes_, whole_last);
  const auto evaluation =
      Evaluate(*problem_.graph, schedule, problem_.capabilities);
  if (!evaluation.ok()) return {};
  return {std::move(schedule), *evaluation};
}

HostSearch::Placed HostSearch::PlaceTight(const std::vector<OpId>& execs) {
  Placed placed = Place(execs, false);
  if (!has_whole_) return placed;
  Placed other = Place(execs, true);
  const bool is_tighter =
      !other.schedule.empty() &&
      (placed.schedule.empty() ||
       other.evaluation.peak_bytes < placed.evaluation.peak_bytes);
  return is_tighter ? std::move(other) : std::move(placed);
}

int64_t HostSearch::Keep(Placed placed, const std::vector<OpId>& execs) {
  if (placed.schedule.empty()) return Score::kWorst;
  const int64_t score = score_.Of({.valid = true,
                                   .time_ns = placed.evaluation.time_ns,
                                   .peak_bytes = placed.evaluation.peak_bytes});
  // What exceeds the budget by little may have the better score.
  const bool fits = placed.evaluation.peak_bytes <= budget_bytes_;
  if (fits != Fits() ? fits : score < best_score_) {
    best_score_ = score;
    best_ = std::move(placed.schedule);
    evaluation_ = placed.evaluation;
    best_execs_ = execs;
  }
  return score;
}

int64_t HostSearch::Try(const std::vector<OpId>& execs) {
  int64_t score = Keep(Place(execs, false), execs);
  if (has_whole_) score = std::min(score, Keep(Place(execs, true), execs));
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
  std::vector<size_t> used(problem_.bytes.size(), 0);
  for (size_t at = 0; at < reader; ++at) {
    const Op& op = problem_.graph->ops[execs[at]];
    for (const StorageId s : op.reads) used[s] = at;
    for (const StorageId s : op.writes) used[s] = at;
  }
  const auto is_far = [&](StorageId s) { return used[s] + 2 < reader; };
  return is_far(versions.storage[wanted]) &&
         RemakeBefore(execs, reader, wanted, [&](StorageId s) {
           return is_far(s) && random_.Percent(50);
         });
}

bool HostSearch::RemakeBefore(std::vector<OpId>& execs, size_t reader,
                              ValueId wanted,
                              const std::function<bool(StorageId)>& also) {
  const Versions& versions = problem_.versions;
  OpId next = 0;  // runs next for the first time
  for (size_t at = 0; at < reader; ++at) next += execs[at] == next;
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
      if ((older || also(s)) && !make(u) && older) return false;
    }
    if (std::find(burst.begin(), burst.end(), maker) == burst.end()) {
      burst.push_back(maker);
    }
    return true;
  };
  if (!make(wanted)) return false;
  execs.insert(execs.begin() + static_cast<int64_t>(reader), burst.begin(),
               burst.end());
  return true;
}

std::vector<HostSearch::Idle> HostSearch::IdleAtPeak(
    const Placed& placed, const std::vector<Lifetime>& lives) const {
  const StepGraph& graph = *problem_.graph;
  const Versions& versions = problem_.versions;
  const auto& [schedule, evaluation] = placed;
  const int32_t peak = evaluation.peak_entry;
  std::vector<uint8_t> is_idle(problem_.bytes.size(), 0);
  for (const Lifetime& life : lives) {
    if (life.born < peak && peak < life.dead) is_idle[life.storage] = 1;
  }
  const Op& op = graph.ops[evaluation.peak_op];
  for (const auto* used : {&op.reads, &op.writes, &op.mutates}) {
    for (const StorageId s : *used) is_idle[s] = 0;
  }
  std::vector<Idle> found;
  size_t exec = 0;
  for (int32_t at = 0; at < static_cast<int32_t>(schedule.size()); ++at) {
    if (schedule[at].kind != Entry::Kind::kExec) continue;
    const size_t reader = exec++;
    if (at <= peak) continue;
    for (const ValueId v : versions.Need(schedule[at].id)) {
      const StorageId s = versions.storage[v];
      if (is_idle[s] != 0 && problem_.bytes[s] > 0) {
        found.push_back({v, reader, at});
      }
      is_idle[s] = 0;
    }
  }
  const int64_t excess = evaluation.peak_bytes - budget_bytes_;
  const auto price = [&](const Idle& idle) {
    const int64_t bytes = problem_.bytes[versions.storage[idle.value]];
    return static_cast<double>(RerunNs(graph.ops[versions.maker[idle.value]])) /
           static_cast<double>(std::min(excess, bytes));
  };
  std::stable_sort(
      found.begin(), found.end(),
      [&](const Idle& a, const Idle& b) { return price(a) < price(b); });
  return found;
}

void HostSearch::Repair(int64_t ticks) {
  if (best_.empty() || Fits()) return;
  const int64_t end = effort_.ticks() + ticks;
  const StepGraph& graph = *problem_.graph;
  std::vector<OpId> execs = best_execs_;
  Placed now = {best_, evaluation_};
  const auto lower = [&](const Idle& idle, const std::vector<Lifetime>& lives) {
    // What neither is there by then nor can be on the host until then.
    std::vector<uint8_t> is_gone(problem_.bytes.size());
    for (size_t s = 0; s < is_gone.size(); ++s) {
      is_gone[s] = graph.storages[s].stays;
    }
    for (const Lifetime& life : lives) {
      if (life.born <= idle.entry && idle.entry < life.dead) {
        is_gone[life.storage] = 0;
      }
    }
    std::vector<OpId> changed = execs;
    if (effort_.ticks() >= end ||
        !RemakeBefore(changed, idle.reader, idle.value,
                      [&](StorageId s) { return is_gone[s] != 0; })) {
      return false;
    }
    Placed tried = PlaceTight(changed);
    if (tried.schedule.empty() ||
        tried.evaluation.peak_bytes >= now.evaluation.peak_bytes) {
      return false;
    }
    now = std::move(tried);
    execs = std::move(changed);
    return true;
  };
  bool goes_on = true;
  while (goes_on && now.evaluation.peak_bytes > budget_bytes_ &&
         effort_.ticks() < end && !effort_.Over()) {
    const std::vector<Lifetime> lives = Lifetimes(graph, now.schedule);
    const std::vector<Idle> idle = IdleAtPeak(now, lives);
    goes_on = std::any_of(idle.begin(), idle.end(),
                          [&](const Idle& one) { return lower(one, lives); });
  }
  Keep(std::move(now), execs);
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
