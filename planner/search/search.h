// SPDX-License-Identifier: Apache-2.0
//
// The state of one solve: what it shares with others (Known), what it has found
// and proven, and its passes. Which pass runs when, and for how long, is one
// list in solve.cc; the passes lie by what they are for:
//
//   solve.cc           the list, Run, refusals
//   search_first.cc    first schedules: by name, from cuts, of equal blocks
//   search_tight.cc    constructions for budgets at which few schedules fit
//   search_bounds.cc   windows: better bounds, and schedules from what they say
//   search_improve.cc  annealing in rounds, and what helps where it stalls
//   anneal_each.cc     several annealings, side by side where threads help
//
// Everything is counted in ticks of the effort, so that a solve repeats. What
// each pass costs and gains is booked (passes.h).
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "planner/bounds/certificate.h"
#include "planner/construct/block_plan.h"
#include "planner/model/effort.h"
#include "planner/model/evaluate.h"
#include "planner/model/passes.h"
#include "planner/model/random.h"
#include "planner/model/score.h"
#include "planner/search/local_search.h"
#include "planner/search/solve.h"

namespace reprise::planner {

// First temperature of a search from the base order, 2^-8 of the base time.
inline constexpr int kHot = 8;
// Starts of annealing that are kept.
inline constexpr int kMostStarts = 6;

class Search {
 public:
  Search(const Problem& problem, const Request& request, Known& known,
         Effort& effort)
      : problem_(problem),
        request_(request),
        known_(known),
        generator_(known.generator),
        archive_(known.archive),
        effort_(effort),
        certificate_(problem, request.budget_bytes, effort, request.exchange),
        random_(request.seed),
        is_plain_(IsPlain(problem)),
        scale_(effort.most_ticks()) {}

  Solution Run();

  static std::vector<PassRule> Rules();

 private:
  // One line of the list: an algorithm, its part of the ticks that the list is
  // run with, in 1/64, and when it is worth a try (nullptr: always, even where
  // the effort is over).
  struct Pass {
    std::string_view name;
    int64_t share = 0;
    bool (Search::*wanted)() const = nullptr;
    void (Search::*run)(int64_t ticks) = nullptr;
    // Who runs it where several searches share the work.
    Part part = Part::kAll;
  };
  static const Pass kFirst[];
  static const Pass kRound[];
  static const Pass kFar[];
  static const Pass kLast[];

  // Those that are wanted, in turn, until the budget is proven impossible.
  void RunAll(std::span<const Pass> passes, int64_t ticks);
  PassLog::State Now() const;
  bool IsLeftOut(std::string_view name) const;
  // Tells other searches what is new here, and takes what is better there.
  void Trade();
  // Threads of other searches help this one.
  bool IsShared() const {
    return request_.exchange != nullptr && request_.part == Part::kProve;
  }
  // Proven here or by another search.
  int64_t BoundNs() const {
    return std::max(certificate_.added_ns(), shared_bound_ns_);
  }

  // Nothing fits. What is the smallest that is known to?
  Solution Refuse();

  const Archive::Point* Best() const {
    return archive_.Best(request_.budget_bytes);
  }
  int64_t BestAdded() const {
    const Archive::Point* best = Best();
    return best == nullptr ? Score::kWorst
                           : best->time_ns - problem_.base.time_ns;
  }
  std::vector<OpId> BaseExecs() const {
    std::vector<OpId> execs(problem_.op_count);
    for (OpId o = 0; o < problem_.op_count; ++o) execs[o] = o;
    return execs;
  }
  // Time at which the gap is within the target.
  int64_t GoodEnough() const {
    const double slack =
        request_.target_gap * static_cast<double>(problem_.base.time_ns);
    return problem_.base.time_ns + BoundNs() + static_cast<int64_t>(slack);
  }
  // What a search aims at: that, and once it is reached the bound.
  int64_t Aim() const {
    const bool reached = Best() != nullptr && Best()->time_ns <= GoodEnough();
    return reached ? problem_.base.time_ns + BoundNs() : GoodEnough();
  }
  // Up to what a MIP proves.
  bool Proven() const {
    return Best() != nullptr && IsProven(problem_, BestAdded(), BoundNs());
  }
  // More than 2 % of the step above the bound, and small enough to search on.
  bool IsFar() const;
  bool Done() const {
    return effort_.Over() ||
           (Best() != nullptr && (Best()->time_ns <= GoodEnough() || Proven()));
  }
  void Report(std::string_view pass) {
    if (!request_.on_progress) return;
    Progress progress{.pass = pass};
    progress.bound = Overhead(BoundNs(), problem_.base.time_ns);
    if (Best() != nullptr) {
      progress.overhead = Overhead(BestAdded(), problem_.base.time_ns);
    }
    request_.on_progress(progress);
  }

  // ---- When a pass is wanted

  bool IsOpen() const { return !Done(); }
  bool HasNone() const { return Best() == nullptr; }
  bool HasNonePlain() const { return HasNone() && is_plain_; }
  bool HasNoneWithVersions() const { return HasNone() && !is_plain_; }
  // Nothing fits yet, or a schedule found from its end was the first that did.
  bool IsTight() const { return HasNone() || log_.FoundFirst("unwind"); }
  bool IsTightAndSmall() const;
  bool IsLoose() const { return !IsTight(); }
  bool IsLateAndNone() const;
  bool IsSmall() const;
  bool IsSmallWithPlan() const { return IsSmall() && !HasNone(); }
  bool HasBlocks() const;
  bool HasStarts() const { return IsSmall() && !starts_.empty(); }
  bool HasNearStarts() const;
  bool HasStartsLeft() const { return IsAlmostDone() && !starts_.empty(); }
  bool IsOddRound() const { return IsOpen() && round_ % 2 == 1; }
  bool IsAlmostDone() const;
  bool IsOpenAlone() const;
  bool IsOddRoundAlone() const;

  // ---- First schedules

  // Windows of the base order: a first bound, or a refusal.
  void CertifyBaseOrder(int64_t ticks);
  // What people know by name: the answer is never worse than any of it.
  void AddStrategies(int64_t ticks);
  // Exact solutions of the chain that the step resembles.
  void AddChains(int64_t ticks);
  void Construct(int64_t ticks);
  // Equal blocks alike: as many of them as the budget asks for, evenly spread.
  void ConstructBlocks(int64_t ticks);
  // A plan before the bounds take their time: whoever stops the search early
  // should have one.
  void FindAny(int64_t ticks);
  // More proofs that the budget is impossible.
  void LookBack(int64_t ticks);
  void AddStart(const Flags& flags);

  // ---- Tight budgets

  // Schedules found from their end, with ever more room to move in; where there
  // is one, by both measures.
  void UnwindFromMarks(int64_t ticks);
  // Schedules by the greedy, for budgets at which dropping by cuts is not
  // enough.
  void Squeeze(int64_t ticks);
  // Execs of a construction that drops too much, and what is left of them once
  // all that fits is held. False where the evaluator does not accept them.
  bool AddAndHold(const std::vector<OpId>& execs, const char* solver);
  // False where the evaluator does not accept them.
  bool AddExecs(const std::vector<OpId>& execs, const char* solver);
  StatusOr<Evaluation> EvaluateExecs(const std::vector<OpId>& execs) const;

  // ---- Bounds

  // Single windows solved exactly: a better bound, and a keep-set to start
  // from.
  void Sharpen(int64_t ticks);
  // Several windows at once: a better bound still, and schedules that fit at
  // all of them.
  void Combine(int64_t ticks);
  // Whether the best plan is optimal, by a tree that knows what to prove.
  void Refute(int64_t ticks);
  // Makes schedules that keep what the windows say. Returns the ops whose
  // first runs, or the re-runs just before them, exceed the budget.
  std::vector<OpId> StartFrom(const std::vector<KeepSet>& keep_sets,
                              const char* solver);

  // ---- Improvement

  // Rounds, each longer than the last, until the search is done.
  void Improve();
  // Annealing: hot from the base order, which forgets what the constructions
  // got wrong, then cooler from the best schedule; now and then from what
  // windows and cuts say to keep.
  void Anneal(int64_t ticks);
  // The same from the base order, once and briefly: a cutoff for the windows.
  void AnnealFirst(int64_t ticks);
  // Short and cool, from what the windows say to keep: their solutions are
  // often a few moves from a schedule that fits.
  void AnnealStarts(int64_t ticks);
  // Several annealings: in turn, until `is_over`, and side by side where this
  // search proves and others have threads that help. `run_of` says what the
  // i-th one begins with, when it begins.
  struct AnnealingRun {
    std::vector<OpId> execs;
    LocalSearchOptions options;
  };
  void AnnealEach(size_t count, const std::function<bool()>& is_over,
                  const std::function<AnnealingRun(size_t)>& run_of);
  // Block moves: of long steps the main search.
  void ImproveBlocks(int64_t ticks);

  // ---- State

  const Problem& problem_;
  const Request& request_;
  Known& known_;
  Generator& generator_;
  Archive& archive_;
  Effort& effort_;
  Certificate certificate_;
  Random random_;
  PassLog log_;
  int64_t shared_bound_ns_ = 0;  // another search's
  const bool is_plain_;
  std::vector<std::vector<OpId>> starts_;  // of rounds of annealing
  int round_ = 0;
  std::unique_ptr<BlockPlan> block_plan_;
  const int64_t scale_;  // shares of the effort are parts of this
};

}  // namespace reprise::planner
