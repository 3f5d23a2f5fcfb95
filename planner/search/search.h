// SPDX-License-Identifier: Apache-2.0
//
// The state of one solve: what it shares with other solves (Known), what it has
// found and proven, and its passes. One list in solve.cc says which pass runs
// when, and for how long. The passes are grouped by purpose:
//
//   solve.cc           the list, Run, refusals
//   search_first.cc    first schedules: named plans, from cuts, of equal blocks
//   search_long.cc     long steps: segments, and the repair of what exceeds the
//                      budget
//   search_tight.cc    constructions for budgets at which few schedules fit
//   search_bounds.cc   windows: better bounds, and schedules from their results
//   search_improve.cc  annealing in rounds, and what helps when it stalls
//   anneal_each.cc     several annealings, in parallel if threads help
//
// Everything is counted in ticks of the effort, so that a solve is
// reproducible. Costs and gains of each pass are recorded (passes.h).
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <span>
#include <string_view>
#include <vector>

#include "planner/bounds/certificate.h"
#include "planner/bounds/lp.h"
#include "planner/construct/block_plan.h"
#include "planner/model/effort.h"
#include "planner/model/passes.h"
#include "planner/model/random.h"
#include "planner/model/score.h"
#include "planner/search/local_search.h"
#include "planner/search/solve.h"

namespace reprise::planner {

// First temperature of a search from the base order: 2^-8 of the base time.
inline constexpr int kHot = 8;
// Limit for the starting points of annealing that are kept.
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

  // Runs the passes until the gap is closed, the effort is over or the budget
  // is proven impossible. Call it once.
  Solution Run();

  static std::vector<PassRule> Rules();

 private:
  // One line of the list: an algorithm, its part of the ticks in 1/64, and a
  // condition (null: run always, even if the effort is spent).
  struct Pass {
    std::string_view name;
    int64_t share = 0;
    bool (Search::*wanted)() const = nullptr;
    void (Search::*run)(int64_t ticks) = nullptr;
    // Which search runs it if several share the work.
    Part part = Part::kAll;
  };
  static const Pass kFirst[];
  static const Pass kRound[];
  static const Pass kLongRound[];
  static const Pass kFar[];
  static const Pass kLast[];

  // Runs the wanted passes in order, until the budget is proven impossible.
  void RunAll(std::span<const Pass> passes, int64_t ticks);
  // Returns ticks, best added time and bound, for the log.
  PassLog::State Now() const;
  // Returns whether the request skips a pass.
  bool IsLeftOut(std::string_view name) const;
  // Tells other searches what is new here, and takes what is better there.
  void Trade();
  // Returns whether plans of other searches count here. A search that proves
  // goes the way of a single search at first, with plans of its own: a tree
  // under a better plan may take longer, and the time until the proof should
  // not depend on which thread finds what when.
  bool TakesPlans() const;
  // Returns whether threads of other searches help this one.
  bool IsShared() const {
    return request_.exchange != nullptr && request_.part == Part::kProve;
  }
  // Added time proven here or by another search.
  int64_t BoundNs() const {
    return std::max(certificate_.added_ns(), shared_bound_ns_);
  }

  // Returns the refusal, with the smallest budget that is known to work.
  Solution Refuse();

  const Archive::Point* Best() const {
    return archive_.Best(request_.budget_bytes);
  }
  // Returns what ranks schedules within the budget and above it.
  Score ScoreOf(int64_t factor = 20) const {
    return planner::ScoreOf(problem_, request_.budget_bytes, factor);
  }
  // Returns the added time of the best plan; Score::kWorst if there is none.
  int64_t BestAdded() const {
    const Archive::Point* best = Best();
    return best == nullptr ? Score::kWorst
                           : best->time_ns - problem_.base.time_ns;
  }
  // Returns the time at which the gap is within the target.
  int64_t GoodEnough() const {
    const double slack =
        request_.target_gap * static_cast<double>(problem_.base.time_ns);
    return problem_.base.time_ns + BoundNs() + static_cast<int64_t>(slack);
  }
  // Returns the target of a search: GoodEnough and, once that is reached, the
  // bound.
  int64_t Aim() const {
    const bool reached = Best() != nullptr && Best()->time_ns <= GoodEnough();
    return reached ? problem_.base.time_ns + BoundNs() : GoodEnough();
  }
  // Returns whether the best plan is proven optimal, up to a tolerance (plan.h).
  bool Proven() const {
    return Best() != nullptr && IsProven(problem_, BestAdded(), BoundNs());
  }
  // Returns whether the best plan is more than 0.5 % of the step above the bound,
  // in a step small enough to search on.
  bool IsFar() const;
  // Returns whether the target is reached, or the effort is over.
  bool Done() const {
    return effort_.Over() ||
           (Best() != nullptr && (Best()->time_ns <= GoodEnough() || Proven()));
  }
  // Calls on_progress with the current overhead and bound.
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
  // No schedule fits yet, or the first that did was unwound.
  bool IsTight() const {
    return HasNone() || log_.FoundFirst("unwind") || log_.FoundFirst("squeeze");
  }
  bool IsTightAndSmall() const;
  bool IsLoose() const { return !IsTight(); }
  bool IsLateAndNone() const;
  bool HasFewOps() const { return problem_.op_count <= kMostSmallOps; }
  bool IsSmall() const { return IsOpen() && HasFewOps(); }
  bool HasSegments() const {
    return IsOpen() && problem_.op_count >= kFewestSegmentedOps && !fits_.done;
  }
  bool IsSmallWithPlan() const { return IsSmall() && !HasNone(); }
  // Where memory is short at two places, bursts between them have no room.
  bool IsTightAtOnePlace() const {
    return IsLargeWithPlan() && round_ >= 2 && !certificate_.is_nested();
  }
  bool IsOddRoundAndLarge() const { return IsOddRound() && IsLargeWithPlan(); }
  bool IsLargeWithPlan() const {
    return IsOpen() && !HasFewOps() && !HasNone();
  }
  bool HasBlocks() const {
    return IsOpen() && !HasFewOps() && block_plan_ != nullptr &&
           !block_plan_->empty();
  }
  bool HasStarts() const { return IsSmall() && !starts_.empty(); }
  bool HasNearStarts() const;
  bool HasStartsLeft() const { return IsAlmostDone() && !starts_.empty(); }
  bool IsOddRoundAndTight() const { return IsOddRound() && IsTightAndSmall(); }
  bool IsOddRound() const { return IsOpen() && round_ % 2 == 1; }
  bool IsAlmostDone() const { return !HasNone() && !Proven() && HasFewOps(); }

  // ---- First schedules

  // Solves windows of the base order: gives a first bound, or a refusal.
  void CertifyBaseOrder(int64_t ticks);
  // Adds the named plans, so that the answer is never worse than one of them.
  void AddStrategies(int64_t ticks);
  // Adds exact solutions of the chain that the step resembles.
  void AddChains(int64_t ticks);
  // Constructs schedules from minimum cuts.
  void Construct(int64_t ticks);
  // Constructs schedules that treat equal blocks alike: as many as the budget
  // requires, evenly spread, are recomputed.
  void ConstructBlocks(int64_t ticks);
  // Schedules of long steps: the cut at the best window, with the ends of
  // segments saved, repaired where it exceeds the budget. Fitting segments come
  // first, and a later call goes on where the last one ended; where the first of
  // them find no plan, ever fewer even ones.
  void ConstructSegments(int64_t ticks);
  // Fits segments to one more cut.
  void FitSegments(OpId at);
  void ConstructEven(OpId at, int64_t end);
  // Makes the schedules of a keep-set and repairs them (cover.h). Returns the
  // least time, and the least peak before the repair; Score::kWorst if there is
  // none.
  struct Repaired {
    int64_t time_ns = Score::kWorst;
    int64_t peak_before = Score::kWorst;
  };
  Repaired RepairCut(const KeepSet& keep_set);
  // Finds a plan before the bounds take their time, so that a search that is
  // stopped early has one.
  void FindAny(int64_t ticks);
  // Looks for further proofs that the budget is impossible.
  void LookBack(int64_t ticks) { certificate_.TryPebbling(ticks); }
  // Adds the schedule of these flags to the starting points of annealing.
  void AddStart(const Flags& flags);

  // ---- Tight budgets

  // Constructs schedules from their end, with ever more room; once one is
  // found, by both measures.
  void UnwindFromMarks(int64_t ticks);
  // Unwinds by random weights, where that ends with nothing at budgets a little
  // larger, and anneals until the schedule fits.
  void Squeeze(int64_t ticks);
  // Adds execs. Returns their time; Score::kWorst if the evaluator rejects them.
  int64_t AddExecs(const std::vector<OpId>& execs, const char* solver);

  // ---- Bounds

  // Solves several windows together: a better bound, and schedules that fit at
  // all of them.
  void Combine(int64_t ticks);
  // The same for long steps, of windows far apart, by minimum cuts alone.
  void Nest(int64_t ticks) {
    certificate_.Nest(Touched(8, problem_.op_count / 20), ticks);
  }
  // Returns ops at which the best plan uses almost the whole budget, at most
  // `count`, at least `apart` from each other.
  std::vector<OpId> Touched(int count, int apart) const;
  // Tries to prove that the best plan is optimal, by a tree with a known
  // target.
  void Refute(int64_t ticks);
  Generated GenerateKeeping(const std::vector<KeepSet>& keep_sets,
                            Retention tail);
  // Makes schedules that keep what the windows say. Returns the ops whose first
  // runs, or re-runs just before them, exceed the budget.
  std::vector<OpId> StartFrom(const std::vector<KeepSet>& keep_sets,
                              const char* solver);

  // ---- Improvement

  // Runs rounds of improvement, each longer than the last, until the search is
  // done.
  void Improve();
  // Annealing: hot from the base order, which discards the mistakes of the
  // constructions, then cooler from the best schedule; sometimes from the
  // keep-sets of windows and cuts.
  void Anneal(int64_t ticks);
  // One brief annealing from the base order: gives the windows a cutoff.
  void AnnealFirst(int64_t ticks);
  // Short, cool annealing from the keep-sets of windows: their solutions are
  // often a few moves from a schedule that fits.
  void AnnealStarts(int64_t ticks);
  // Runs `count` annealings: one after the other until `is_over`, or in
  // parallel if this search proves and threads of others help. `run_of(i)`
  // returns what the i-th one starts from, when it starts.
  struct AnnealingRun {
    std::vector<OpId> execs;
    LocalSearchOptions options;
  };
  void AnnealEach(size_t count, const std::function<bool()>& is_over,
                  const std::function<AnnealingRun(size_t)>& run_of);
  // Joins the bursts of the best plan of a long step (join_bursts.h).
  void Join(int64_t ticks);
  // Block moves: for long steps the main search.
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
  int64_t shared_bound_ns_ = 0;  // proven by another search
  const bool is_plain_;
  std::vector<std::vector<OpId>> starts_;  // starting points for annealing
  // Of a long step: how far fitting segments have been tried.
  struct Fits {
    bool done = false;
    int64_t best_ns = Score::kWorst;  // of the ways before
    int worse = 0;                    // ways in a row without a better schedule
    int next = 0;                     // the way that is being tried
    struct Way {
      int idle_cuts = 0;  // in a row without a better schedule
      int64_t time_ns = Score::kWorst;
      std::vector<ValueId> ends = {};  // that the next cut saves
      std::set<std::vector<ValueId>> seen = {};
    };
    Way way = {};
  };
  Fits fits_;
  int64_t repair_ticks_ = 0;  // that one repair may take
  // Of a long step: the best schedule of segments that was not repaired, which
  // annealing goes on from if it is better than the best plan.
  std::vector<OpId> near_;
  int64_t near_score_ = Score::kWorst;
  int round_ = 0;
  std::unique_ptr<BlockPlan> block_plan_;
  bool block_moves_gain_ = true;  // their last run did, or there was none
  const int64_t scale_;           // total ticks; the shares refer to it
};

}  // namespace reprise::planner
