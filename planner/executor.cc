// SPDX-License-Identifier: Apache-2.0
#include "planner/executor.h"

#include <algorithm>
#include <string>

#include "planner/chain.h"
#include "planner/exec_list.h"
#include "planner/random.h"
#include "planner/score.h"
#include "planner/strategy.h"
#include "planner/window_bound.h"

namespace reprise::planner {
namespace {

// Backward: the walk over the backward that makes again what is missing.
class Backward {
 public:
  Backward(const Problem& problem, const SavedSet& saved)
      : problem_(problem), present_(problem.bytes.size(), kNoValue) {
    const Versions& versions = problem.versions;
    for (OpId o = 0; o < problem.first_backward; ++o) {
      execs_.push_back(o);
      for (const ValueId v : versions.Make(o)) {
        present_[versions.storage[v]] = v;
      }
    }
    for (size_t s = 0; s < present_.size(); ++s) {
      const ValueId v = present_[s];
      if (v == kNoValue || problem.rules.may_remake[v] == 0) continue;
      // A storage that the program still holds cannot be dropped.
      const OpId held = problem.rules.held_until[s];
      if (held != kNoOp && held >= problem.first_backward) continue;
      if (saved[s] == 0) present_[s] = kNoValue;
    }
  }

  bool IsMissing(ValueId v) const {
    return present_[problem_.versions.storage[v]] != v;
  }

  // False: it may not run again.
  bool Run(OpId o, bool again) {
    if (again && problem_.rules.may_rerun[o] == 0) return false;
    execs_.push_back(o);
    for (const ValueId v : problem_.versions.Make(o)) {
      present_[problem_.versions.storage[v]] = v;
    }
    return true;
  }

  // Everything missing for these values, in base order.
  bool Remake(std::span<const ValueId> wanted) {
    const Versions& versions = problem_.versions;
    std::vector<OpId> ops;
    std::vector<ValueId> stack;
    std::vector<uint8_t>& in = in_;
    in.resize(problem_.op_count, 0);
    const auto want = [&](ValueId v) {
      const OpId maker = versions.maker[v];
      if (!IsMissing(v) || in[maker] != 0) return;
      in[maker] = 1;
      ops.push_back(maker);
      stack.push_back(v);
    };
    for (const ValueId v : wanted) want(v);
    while (!stack.empty()) {
      const OpId maker = versions.maker[stack.back()];
      stack.pop_back();
      for (const ValueId u : versions.Need(maker)) want(u);
    }
    std::sort(ops.begin(), ops.end());
    bool possible = true;
    for (const OpId o : ops) {
      in[o] = 0;
      possible = possible && o < problem_.first_backward && Run(o, true);
    }
    return possible;
  }

  std::vector<OpId>& execs() { return execs_; }

 private:
  const Problem& problem_;
  std::vector<ValueId> present_;  // by storage
  std::vector<uint8_t> in_;
  std::vector<OpId> execs_;
};

// A last version that stays through the forward, that somebody may make again
// and that something after the forward reads, directly or to make others.
bool IsDecision(const Problem& problem, StorageId s) {
  const Versions& versions = problem.versions;
  const ValueId first = versions.first_value[s];
  return versions.maker[first] < problem.first_backward &&
         problem.rules.may_remake[versions.Last(s)] != 0 &&
         problem.bytes[s] > 0;
}

// Annealing: the search of one kind of executor.
class Annealing {
 public:
  Annealing(const Problem& problem, int64_t budget_bytes, int64_t good_ns,
            uint64_t seed, Archive& archive, Effort& effort)
      : problem_(problem),
        good_ns_(good_ns),
        random_(seed),
        archive_(archive),
        effort_(effort),
        list_(problem),
        score_{.budget_bytes = budget_bytes,
               .base_time_ns = problem.base.time_ns,
               .base_peak_bytes = problem.base.peak_bytes} {
    for (StorageId s = 0; s < static_cast<StorageId>(problem.bytes.size());
         ++s) {
      if (IsDecision(problem, s)) decisions_.push_back(s);
    }
  }

  void UseRegions(std::vector<int32_t> region_of) {
    region_of_ = std::move(region_of);
  }

  bool Done() const {
    const Archive::Point* best = archive_.Best(score_.budget_bytes);
    return effort_.Over() || (best != nullptr && best->time_ns <= good_ns_);
  }

  // The score of a set; its plan goes to the archive. peak_ is set.
  int64_t Try(const SavedSet& saved) {
    const std::vector<OpId> execs =
        problem_.capabilities.execution == Execution::kOnce
            ? OnceExecs(problem_, saved)
            : NestedExecs(problem_, region_of_, saved);
    effort_.Spend(static_cast<int64_t>(problem_.op_count) * 4);
    if (execs.empty()) return Score::kWorst;
    const int64_t before = list_.ticks();
    list_.Assign(execs);
    effort_.Spend(list_.ticks() - before);
    if (!list_.valid()) return Score::kWorst;
    const Generated figures{.valid = true,
                            .time_ns = list_.time_ns(),
                            .peak_bytes = list_.PeakBytes()};
    const int64_t score = score_.Of(figures);
    const Archive::Point* best = archive_.Best(figures.peak_bytes);
    if (best == nullptr || best->time_ns > figures.time_ns) {
      // The evaluator has the last word.
      const StatusOr<Evaluation> evaluation = Evaluate(
          *problem_.graph,
          WithFrees(*problem_.graph, execs, problem_.capabilities.free_policy),
          problem_.capabilities);
      if (!evaluation.ok()) return Score::kWorst;
      archive_.Add(evaluation->peak_bytes, evaluation->time_ns, execs,
                   problem_.capabilities.execution == Execution::kOnce
                       ? "saved-set"
                       : "regions");
    }
    return score;
  }

  // Improves a set; most of the time goes to what is alive at the peak.
  void Run(SavedSet saved, int64_t ticks) {
    if (decisions_.empty() || Done()) return;
    int64_t now = Try(saved);
    SavedSet best = saved;
    int64_t best_score = now;
    const int64_t begin = effort_.ticks();
    while (!Done() && effort_.ticks() - begin < ticks) {
      // From 2^-8 to 2^-18 of the base time.
      const int64_t spent = effort_.ticks() - begin;
      const int shift = 8 + static_cast<int>(10 * spent / (ticks + 1));
      SavedSet next = saved;
      const int flips = random_.Percent(25) ? 2 : 1;
      for (int i = 0; i < flips; ++i) {
        const StorageId s =
            decisions_[random_.Below(static_cast<int64_t>(decisions_.size()))];
        next[s] = next[s] == 0;
      }
      const int64_t score = Try(next);
      const int64_t slack =
          static_cast<int64_t>(static_cast<__int128>(random_.Exponential16()) *
                                   (problem_.base.time_ns >> shift) >>
                               16);
      if (score == Score::kWorst || score > now + slack) continue;
      saved = std::move(next);
      now = score;
      if (now < best_score) {
        best_score = now;
        best = saved;
      }
    }
  }

  const std::vector<StorageId>& decisions() const { return decisions_; }

 private:
  const Problem& problem_;
  const int64_t good_ns_;
  Random random_;
  Archive& archive_;
  Effort& effort_;
  ExecList list_;
  const Score score_;
  std::vector<StorageId> decisions_;
  std::vector<int32_t> region_of_;
};

// Regions to try: the stages of the chain, joined to fewer and fewer; one
// region for everything where the graph is no chain.
std::vector<std::vector<int32_t>> Regions(const Problem& problem) {
  std::vector<std::vector<int32_t>> regions;
  const Chain chain = FindChain(problem);
  for (int stages = std::max(1, chain.stage_count()); stages >= 1;
       stages = stages * 2 / 3) {
    const Chain joined = JoinStages(problem, chain, stages);
    std::vector<int32_t> region_of(problem.op_count, 0);
    if (joined.stage_count() > 0) region_of = StagesOfOps(problem, joined);
    region_of.resize(problem.first_backward);
    regions.push_back(std::move(region_of));
    if (stages == 1) break;
  }
  return regions;
}

}  // namespace

SavedSet SaveAll(const Problem& problem) {
  return SavedSet(problem.bytes.size(), 1);
}

SavedSet SavedBy(const Problem& problem, const std::vector<OpId>& execs) {
  SavedSet saved = SaveAll(problem);
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

std::vector<OpId> OnceExecs(const Problem& problem, const SavedSet& saved) {
  Backward walk(problem, saved);
  for (OpId o = problem.first_backward; o < problem.op_count; ++o) {
    if (!walk.Remake(problem.versions.Need(o))) return {};
    walk.Run(o, /*again=*/false);
  }
  for (const ValueId v : problem.end_need) {
    if (walk.IsMissing(v)) return {};
  }
  return walk.execs();
}

std::vector<OpId> NestedExecs(const Problem& problem,
                              const std::vector<int32_t>& region_of,
                              const SavedSet& given) {
  const Versions& versions = problem.versions;
  SavedSet saved = given;
  for (ValueId v = 0; v < versions.value_count(); ++v) {
    if (versions.maker[v] >= problem.first_backward) continue;
    const int32_t region = region_of[versions.maker[v]];
    for (const OpId use : problem.Uses(v)) {
      if (use < problem.first_backward && region_of[use] != region) {
        saved[versions.storage[v]] = 1;
      }
    }
  }
  std::vector<OpId> begin;  // by region: its first op
  for (OpId o = 0; o < problem.first_backward; ++o) {
    if (o == 0 || region_of[o] != region_of[o - 1]) {
      if (region_of[o] != static_cast<int32_t>(begin.size())) return {};
      begin.push_back(o);
    }
  }
  begin.push_back(problem.first_backward);

  Backward walk(problem, saved);
  std::vector<ValueId> restored;
  for (OpId o = problem.first_backward; o < problem.op_count; ++o) {
    for (const ValueId v : versions.Need(o)) {
      if (!walk.IsMissing(v)) continue;
      const OpId maker = versions.maker[v];
      if (maker >= problem.first_backward) return {};
      // The whole region: every op of it with an output that is not there and
      // that the backward reads, and what these need.
      restored.clear();
      const int32_t region = region_of[maker];
      for (OpId p = begin[region]; p < begin[region + 1]; ++p) {
        for (const ValueId u : versions.Make(p)) {
          const auto uses = problem.Uses(u);
          if (!uses.empty() && uses.back() >= problem.first_backward) {
            restored.push_back(u);
          }
        }
      }
      if (!walk.Remake(restored)) return {};
      if (walk.IsMissing(v)) return {};
    }
    walk.Run(o, /*again=*/false);
  }
  for (const ValueId v : problem.end_need) {
    if (walk.IsMissing(v)) return {};
  }
  return walk.execs();
}

void SearchSavedSets(const Problem& problem, int64_t budget_bytes,
                     int64_t bound_ns, const Request& request,
                     const Archive& any, Generator& generator, Archive& archive,
                     Effort& effort) {
  if (problem.first_backward >= problem.op_count) return;
  const int64_t good_ns =
      problem.base.time_ns + bound_ns +
      static_cast<int64_t>(request.target_gap *
                           static_cast<double>(problem.base.time_ns));
  Annealing search(problem, budget_bytes, good_ns, request.seed, archive,
                   effort);
  std::vector<SavedSet> starts;
  for (const Archive::Point* point : {any.Best(budget_bytes), any.Smallest()}) {
    if (point != nullptr) starts.push_back(SavedBy(problem, point->execs));
  }
  for (const Candidate& candidate :
       StrategyCandidates(problem, Strategy::kAuto, generator)) {
    starts.push_back(SavedBy(problem, candidate.execs));
  }
  // Cuts at the boundary: for this budget and for less.
  WindowBound window(problem, problem.first_backward);
  for (const int percent : {100, 90, 80, 65, 50}) {
    const int64_t room = (budget_bytes - problem.static_bytes) / 100 * percent;
    const WindowResult cut = window.Solve(problem.static_bytes + room);
    if (!cut.has_keep_set) continue;
    SavedSet saved = SaveAll(problem);
    for (const OpId o : cut.keep_set.recomputed) {
      for (const ValueId v : problem.versions.Make(o)) {
        saved[problem.versions.storage[v]] = 0;
      }
    }
    for (const ValueId v : cut.keep_set.saved) {
      saved[problem.versions.storage[v]] = 1;
    }
    starts.push_back(std::move(saved));
  }
  effort.Spend(window.ticks());
  // Nothing but what nobody may make again.
  starts.push_back(SavedSet(problem.bytes.size(), 0));

  const bool nested = problem.capabilities.execution == Execution::kNested;
  const std::vector<std::vector<int32_t>> regions =
      nested ? Regions(problem) : std::vector<std::vector<int32_t>>(1);
  struct Start {
    int64_t score;
    size_t set, region;
  };
  std::vector<Start> order;
  for (size_t r = 0; r < regions.size(); ++r) {
    if (nested) search.UseRegions(regions[r]);
    for (size_t i = 0; i < starts.size() && !search.Done(); ++i) {
      order.push_back({search.Try(starts[i]), i, r});
    }
  }
  std::stable_sort(
      order.begin(), order.end(),
      [](const Start& a, const Start& b) { return a.score < b.score; });
  if (order.size() > 4) order.resize(4);
  for (size_t i = 0; i < order.size() && !search.Done(); ++i) {
    if (nested) search.UseRegions(regions[order[i].region]);
    const int64_t left = effort.most_ticks() - effort.ticks();
    search.Run(starts[order[i].set],
               left / static_cast<int64_t>(order.size() - i));
  }
}

}  // namespace reprise::planner
