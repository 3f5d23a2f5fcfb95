// SPDX-License-Identifier: Apache-2.0
//
// The state of one solve: what it shares with others (Known), what it has found
// and proven, and the steps that Run takes in turn. They lie by what they are
// for:
//
//   solve.cc           Run: which step when, and for how long; refusals
//   search_first.cc    first schedules: by name, from cuts, of equal blocks
//   search_tight.cc    constructions for budgets at which few schedules fit
//   search_bounds.cc   windows: better bounds, and schedules from what they say
//   search_improve.cc  annealing in rounds, and what helps where it stalls
//
// Everything is counted in ticks of the effort, so that a solve repeats; the
// steps' shares are parts of what the request allows at its beginning.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "base/status.h"
#include "planner/block_plan.h"
#include "planner/blocks.h"
#include "planner/certificate.h"
#include "planner/effort.h"
#include "planner/evaluate.h"
#include "planner/random.h"
#include "planner/score.h"
#include "planner/solve.h"
#include "planner/squeeze.h"

namespace reprise::planner {

// First temperature of a search from the base order, 2^-8 of the base time.
inline constexpr int kHot = 8;

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
        certificate_(problem, request.budget_bytes, effort),
        random_(request.seed),
        scale_(effort.most_ticks()) {}

  Solution Run();

 private:
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
    return problem_.base.time_ns + certificate_.added_ns() +
           static_cast<int64_t>(slack);
  }
  // Up to what a MIP proves.
  bool Proven() const {
    return Best() != nullptr &&
           IsProven(problem_, BestAdded(), certificate_.added_ns());
  }
  // Nothing fits yet, or only what Unwind found.
  bool IsTight() const { return unwound_ || Best() == nullptr; }
  // More than 2 % of the step above the bound, and small enough to search on.
  bool IsFar() const;
  bool Done() const {
    return effort_.Over() ||
           (Best() != nullptr && (Best()->time_ns <= GoodEnough() || Proven()));
  }
  void Report() {
    if (!request_.on_progress) return;
    Progress progress;
    progress.bound = Overhead(certificate_.added_ns(), problem_.base.time_ns);
    if (Best() != nullptr) {
      progress.overhead = Overhead(BestAdded(), problem_.base.time_ns);
    }
    request_.on_progress(progress);
  }

  // ---- First schedules

  // What people know by name: the answer is never worse than any of it.
  void AddStrategies();
  void Construct();
  // Equal blocks alike: as many of them as the budget asks for, evenly spread.
  void ConstructBlocks();
  // A plan before the bounds take their time: whoever stops the search early
  // should have one.
  void FindAny();
  void AddStart(const Flags& flags);

  // ---- Tight budgets

  // Schedules found from their end, with ever more room to move in; where there
  // is one, by both measures.
  void UnwindFromMarks(int64_t ticks);
  // Schedules from separators, of graphs that few values take apart.
  void TakeApart(int64_t ticks);
  // Schedules by the greedy, for budgets at which dropping by cuts is not
  // enough.
  void Squeeze();
  // A pebbling in any order, brought into base order, where nothing else fits.
  void SearchPebbling(int64_t ticks);
  // Execs of a construction that drops too much, and what is left of them once
  // all that fits is held. False where the evaluator does not accept them.
  bool AddAndHold(const std::vector<OpId>& execs, const char* solver);
  // False where the evaluator does not accept them.
  bool AddExecs(const std::vector<OpId>& execs, const char* solver);
  StatusOr<Evaluation> EvaluateExecs(const std::vector<OpId>& execs) const;

  // ---- Bounds

  // Exact windows: a better bound, and a keep-set to start from.
  void Sharpen(int64_t ticks);
  // Several windows at once: a better bound still, and schedules that fit at
  // all of them.
  void Combine(int64_t ticks);
  // Makes schedules that keep what the windows say. Returns the ops whose
  // first runs, or the re-runs just before them, exceed the budget.
  std::vector<OpId> StartFrom(const std::vector<KeepSet>& keep_sets,
                              const char* solver);
  // Windows at the highest points of the best schedule: there its memory is
  // the reason for its time.
  void CertifyIncumbent();

  // ---- Improvement

  // Rounds of annealing, each longer than the last: hot from the base order,
  // which forgets what the constructions got wrong, then cooler from the best
  // schedule; now and then from what windows and cuts say to keep.
  void Improve();
  // Block moves: of long steps the main search.
  void ImproveBlocks(int64_t ticks);
  // Parts of the best schedule decided again, exactly. Their share of the
  // effort grows where they gain something and shrinks where they do not.
  void SearchAround(int64_t ticks);
  // The target gap is reached; a little more often closes it.
  void Polish();

  // ---- State

  const Problem& problem_;
  const Request& request_;
  Known& known_;
  Generator& generator_;
  Archive& archive_;
  Effort& effort_;
  Certificate certificate_;
  Random random_;
  std::vector<std::vector<OpId>> starts_;  // of rounds of annealing
  bool squeezed_ = false;
  std::unique_ptr<BlockPlan> block_plan_;
  std::unique_ptr<Blocks> blocks_;
  uint64_t around_ = 0;      // runs of SearchAround
  int64_t around_part_ = 4;  // its part of the ticks of a round
  bool unwound_ = false;
  std::unique_ptr<Pebbler> pebbler_;
  const int64_t scale_;  // shares of the effort are parts of this
};

}  // namespace reprise::planner
