// SPDX-License-Identifier: Apache-2.0
#include "planner/once/search_once.h"

#include <algorithm>

#include "planner/bounds/window_bound.h"
#include "planner/construct/strategy.h"
#include "planner/model/exec_list.h"
#include "planner/model/random.h"
#include "planner/model/score.h"

namespace reprise::planner {
namespace {

constexpr size_t kMostStarts = 4;

// Returns sets to start from, without a search: those of named plans, of cuts,
// and none.
std::vector<SavedSet> SavedSets(const Problem& problem, int64_t budget_bytes,
                                Generator& generator, Effort& effort) {
  std::vector<SavedSet> sets;
  for (const Archive::Point& candidate :
       StrategyCandidates(problem, Strategy::kAuto, generator)) {
    sets.push_back(SavedBy(problem, candidate.execs));
  }
  // Cuts at the boundary, for this budget and for smaller ones.
  WindowBound window(problem, problem.first_backward);
  for (const int percent : {100, 90, 80, 65, 50}) {
    const int64_t room = (budget_bytes - problem.static_bytes) / 100 * percent;
    const WindowResult cut = window.Solve(problem.static_bytes + room);
    if (!cut.has_keep_set) continue;
    SavedSet saved(problem.bytes.size(), 1);
    for (const OpId o : cut.keep_set.recomputed) {
      for (const ValueId v : problem.versions.Make(o)) {
        saved[problem.versions.storage[v]] = 0;
      }
    }
    for (const ValueId v : cut.keep_set.saved) {
      saved[problem.versions.storage[v]] = 1;
    }
    sets.push_back(std::move(saved));
  }
  effort.Spend(window.ticks());
  // Only what may not be recomputed.
  sets.push_back(SavedSet(problem.bytes.size(), 0));
  return sets;
}

// The search, and what it keeps between its two parts.
class SavedSearch {
 public:
  SavedSearch(const Problem& problem, const Request& request,
              Generator& generator, Archive& archive, Effort& effort)
      : problem_(problem),
        request_(request),
        generator_(generator),
        archive_(archive),
        effort_(effort),
        random_(request.seed),
        list_(problem),
        score_{.budget_bytes = request.budget_bytes,
               .base_time_ns = problem.base.time_ns,
               .base_peak_bytes = problem.base.peak_bytes} {
    for (StorageId s = 0; s < static_cast<StorageId>(problem.bytes.size());
         ++s) {
      // Made in the forward, and its last version can be recomputed.
      const Versions& versions = problem.versions;
      if (versions.maker[versions.first_value[s]] < problem.first_backward &&
          problem.rules.may_remake[versions.Last(s)] != 0 &&
          problem.bytes[s] > 0) {
        decisions_.push_back(s);
      }
    }
  }

  // Tries what is known without a search; if none of it fits, anneals for the
  // rest of the ticks.
  void Begin(int64_t ticks) {
    const int64_t end = effort_.ticks() + ticks;
    AddStarts(SavedSets(problem_, request_.budget_bytes, generator_, effort_),
              end);
    if (archive_.Best(request_.budget_bytes) == nullptr) {
      Improve(std::max<int64_t>(0, end - effort_.ticks()));
    }
  }

  // Continues with schedules that obey the same rules, for the rest of the
  // effort.
  void Continue(const Archive& any, int64_t bound_ns) {
    good_ns_ = problem_.base.time_ns + bound_ns +
               static_cast<int64_t>(request_.target_gap *
                                    static_cast<double>(problem_.base.time_ns));
    std::vector<SavedSet> sets;
    for (const Archive::Point* point :
         {any.Best(request_.budget_bytes), any.Smallest()}) {
      if (point != nullptr) sets.push_back(SavedBy(problem_, point->execs));
    }
    AddStarts(sets, effort_.most_ticks());
    Improve(effort_.most_ticks() - effort_.ticks());
    for (int64_t ticks = effort_.most_ticks();
         request_.until_stopped && !effort_.interrupted() && !Good();
         ticks *= 2) {
      effort_.AllowAtLeast(ticks);
      const Archive::Point* best = archive_.Best(request_.budget_bytes);
      if (best != nullptr) AddStart(SavedIn(problem_, best->execs));
      Improve(effort_.most_ticks() - effort_.ticks());
    }
  }

 private:
  // Returns whether a plan within the budget is good enough.
  bool Good() const {
    const Archive::Point* best = archive_.Best(request_.budget_bytes);
    return best != nullptr && best->time_ns <= good_ns_;
  }
  bool Done() const { return effort_.Over() || Good(); }

  // Returns the score of a set and adds its plan to the archive.
  int64_t Try(const SavedSet& saved) {
    const std::vector<OpId> execs = OnceExecs(problem_, saved);
    effort_.Spend(static_cast<int64_t>(problem_.op_count) * 4 +
                  static_cast<int64_t>(execs.size()) * 2);
    if (execs.empty()) return Score::kWorst;
    const int64_t before = list_.ticks();
    list_.Assign(execs);
    effort_.Spend(list_.ticks() - before);
    if (!list_.valid()) return Score::kWorst;
    const Generated figures{.valid = true,
                            .time_ns = list_.time_ns(),
                            .peak_bytes = list_.PeakBytes()};
    const Archive::Point* best = archive_.Best(figures.peak_bytes);
    // The evaluator must confirm a better plan.
    if ((best == nullptr || best->time_ns > figures.time_ns) &&
        !AddSaved(problem_, saved, "saved-set", archive_)) {
      return Score::kWorst;
    }
    return score_.Of(figures);
  }

  // Adds a set if it is among the best few.
  void AddStart(const SavedSet& saved) {
    if (Done()) return;
    const int64_t score = Try(saved);
    if (score == Score::kWorst) return;
    const auto after = std::upper_bound(
        starts_.begin(), starts_.end(), score,
        [](int64_t s, const auto& start) { return s < start.first; });
    starts_.insert(after, {score, saved});
    if (starts_.size() > kMostStarts) starts_.pop_back();
  }

  // Adds sets, until a tick.
  void AddStarts(const std::vector<SavedSet>& sets, int64_t end) {
    for (const SavedSet& saved : sets) {
      if (effort_.ticks() < end) AddStart(saved);
    }
  }

  // Anneals from each of the starts, with equal shares of the ticks.
  void Improve(int64_t ticks) {
    for (size_t i = 0; i < starts_.size() && !Done(); ++i) {
      Anneal(starts_[i].second, ticks / static_cast<int64_t>(starts_.size()));
    }
  }

  // Anneals from a set for at most this many ticks.
  void Anneal(SavedSet saved, int64_t ticks) {
    if (decisions_.empty() || Done()) return;
    int64_t now = Try(saved);
    const int64_t begin = effort_.ticks();
    while (!Done() && effort_.ticks() - begin < ticks) {
      // Temperature from 2^-8 to 2^-18 of the base time.
      const int64_t spent = effort_.ticks() - begin;
      const int shift = 8 + static_cast<int>(10 * spent / (ticks + 1));
      SavedSet next = saved;
      for (int moves = random_.Percent(25) ? 2 : 1; moves > 0; --moves) {
        next[decisions_[random_.Below(
            static_cast<int64_t>(decisions_.size()))]] ^= 1;
      }
      const int64_t score = Try(next);
      const int64_t slack =
          static_cast<int64_t>(static_cast<__int128>(random_.Exponential16()) *
                                   (problem_.base.time_ns >> shift) >>
                               16);
      if (score == Score::kWorst || score > now + slack) continue;
      saved = std::move(next);
      now = score;
    }
  }

  const Problem& problem_;
  const Request& request_;
  Generator& generator_;
  Archive& archive_;
  Effort& effort_;
  Random random_;
  ExecList list_;
  const Score score_;
  int64_t good_ns_ = 0;
  std::vector<StorageId> decisions_;
  std::vector<std::pair<int64_t, SavedSet>> starts_;  // by score
};

}  // namespace

SavedSet SavedBy(const Problem& problem, const std::vector<OpId>& execs) {
  SavedSet saved(problem.bytes.size(), 1);
  std::vector<uint8_t> ran(problem.op_count, 0);
  for (const OpId o : execs) {
    if (ran[o] != 0) {
      for (const ValueId v : problem.versions.Make(o)) {
        saved[problem.versions.storage[v]] = 0;
      }
    }
    ran[o] = 1;
  }
  return saved;
}

bool AddSaved(const Problem& problem, const SavedSet& saved,
              const std::string& solver, Archive& archive) {
  const std::vector<OpId> execs = OnceExecs(problem, saved);
  if (execs.empty()) return false;
  const StatusOr<Evaluation> evaluation = EvaluateOnce(
      problem,
      WithFrees(*problem.graph, execs, problem.capabilities.free_policy));
  if (!evaluation.ok()) return false;
  archive.Add(*evaluation, execs, solver);
  return true;
}

void SearchOnce(const Problem& problem, const Request& request,
                Generator& generator, Archive& archive, Effort& effort,
                int64_t begin_ticks, const SearchAny& any) {
  if (problem.first_backward == 0 ||
      problem.first_backward >= problem.op_count ||
      problem.capabilities.max_runs == 1) {
    any();
    return;
  }
  SavedSearch search(problem, request, generator, archive, effort);
  if (begin_ticks > 0) search.Begin(begin_ticks);
  const auto [found, bound_ns] = any();
  if (found != nullptr) search.Continue(*found, bound_ns);
}

}  // namespace reprise::planner
