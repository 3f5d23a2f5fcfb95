// SPDX-License-Identifier: Apache-2.0
#include "planner/solve.h"

#include <algorithm>
#include <memory>

#include "base/str_cat.h"
#include "planner/block_plan.h"
#include "planner/burst.h"
#include "planner/construct.h"
#include "planner/exec_list.h"
#include "planner/executor.h"
#include "planner/greedy.h"
#include "planner/local_search.h"
#include "planner/neighbourhood.h"
#include "planner/squeeze.h"
#include "planner/strategy.h"
#include "planner/tree_width.h"
#include "planner/unwind.h"

namespace reprise::planner {
namespace {

// First temperature of a search from the base order, 2^-8 of the base time.
constexpr int kHot = 8;

constexpr size_t kMostStarts = 6;
// Of the windows of the base order, whatever the size of the step.
constexpr int64_t kMostBaseTicks = 25'000'000;
// More effort where the first schedule was hard to find.
constexpr int64_t kTightScales = 2;
// Larger steps end with the effort that they begin with.
constexpr int kMostFarOps = 10'000;
// In larger steps the last hundredths of a percent cost too much.
constexpr int kMostPolishedOps = 1500;
// Rounds of annealing without a gain after which neighbourhoods are tried.
constexpr int kStalledRounds = 3;
// They get the ticks of a round, or as little as this part of them.
constexpr int64_t kMostParts = 32;
// With less a single one may take more than all that is left.
constexpr int64_t kFewestAroundTicks = 1'000'000;
// In smaller ones the search over lists of execs sees all there is.
constexpr int kFewestBlockOps = 400;

// Search: the state of one solve.
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

  Solution Run() {
    if (problem_.base.peak_bytes <= request_.budget_bytes) return {};
    if (!certificate_.impossible()) {
      CertifyBase(problem_, request_.budget_bytes,
                  std::min(scale_ / 8, kMostBaseTicks), certificate_, effort_);
    }
    if (certificate_.impossible()) return Refuse();
    Report();
    AddStrategies();
    Construct();
    ConstructBlocks();
    if (Best() == nullptr) {
      certificate_.TryPebbling(scale_ / 16);
      if (certificate_.impossible()) return Refuse();
    }
    // Of graphs with versions the main search finds tighter schedules than of
    // others, sooner.
    const bool is_plain = IsPlain(problem_);
    if (Best() == nullptr && !is_plain) FindAny();
    if (Best() == nullptr) UnwindFromMarks(scale_ * 3 / 4);
    if (IsTight()) TakeApart(scale_ / 16);
    if (Best() == nullptr && is_plain) FindAny();
    Sharpen(scale_ / 8);
    if (IsTight() && problem_.op_count <= kMostBeamOps) Squeeze();
    Improve();
    if (Best() != nullptr && request_.max_ticks == 0 &&
        (is_plain ? IsTight() : IsFar())) {
      // Far from what is best: worth the same effort again.
      effort_.AllowAtLeast(kTightScales * scale_);
      // A schedule found another way now and then is a better start.
      if (!IsTight()) UnwindFromMarks(scale_ / 2);
      Improve();
    }
    if (Best() == nullptr && request_.max_ticks == 0) {
      // Nothing fits yet and nobody limited the effort: a plan late is worth
      // more than none.
      for (int round = 0; round < 3 && Best() == nullptr; ++round) {
        effort_.AllowAtLeast(scale_ * 9);
        SearchPebbling(scale_ * 8);
      }
      effort_.AllowAtLeast(scale_);
      Improve();
    }
    Polish();
    return {.added_ns = certificate_.added_ns(),
            .impossible = false,
            .infeasible = certificate_.infeasible()};
  }

 private:
  // Nothing fits. What is the smallest that is known to?
  Solution Refuse() {
    const Infeasible infeasible =
        ProveMore(problem_, certificate_.infeasible(), scale_ / 32, effort_);
    const int64_t least = infeasible.smallest_budget_bytes;
    for (const int64_t percent : {100, 105, 120}) {
      const int64_t budget =
          least + (problem_.base.peak_bytes - least) * (percent - 100) / 100;
      const Archive::Point* smallest = archive_.Smallest();
      if (smallest != nullptr && smallest->peak_bytes <= budget) break;
      ConstructOptions options{.budget_bytes = budget, .rounds = 20};
      FromCuts(problem_, options, certificate_, generator_, archive_, effort_);
    }
    return {.added_ns = 0,
            .impossible = true,
            .infeasible = certificate_.infeasible().smallest_budget_bytes >
                                  infeasible.smallest_budget_bytes
                              ? certificate_.infeasible()
                              : infeasible};
  }

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
  bool IsFar() const {
    return problem_.op_count <= kMostFarOps && Best()->time_ns > GoodEnough() &&
           BestAdded() - certificate_.added_ns() > problem_.base.time_ns / 50;
  }
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

  void AddStart(const Flags& flags) {
    if (generator_.Generate(flags).valid) {
      starts_.push_back(generator_.execs());
    }
    effort_.Spend(problem_.op_count);
  }

  // What people know by name: the answer is never worse than any of it.
  void AddStrategies() {
    if (!known_.has_strategies) {
      const int64_t before = generator_.ticks();
      for (const Candidate& candidate :
           StrategyCandidates(problem_, Strategy::kAuto, generator_)) {
        archive_.Add(candidate.peak_bytes, candidate.time_ns, candidate.execs,
                     std::string(NameOf(candidate.strategy)));
      }
      effort_.Spend(generator_.ticks() - before);
      known_.has_strategies = true;
    }
    for (const ChainSchedule& schedule :
         known_.chains.For(request_.budget_bytes, generator_, effort_)) {
      archive_.Add(schedule.peak_bytes, schedule.time_ns, schedule.execs,
                   schedule.solver);
    }
    Report();
  }

  void Construct() {
    const Score score{.budget_bytes = request_.budget_bytes,
                      .base_time_ns = problem_.base.time_ns,
                      .base_peak_bytes = problem_.base.peak_bytes};
    for (const Retention tail : {Retention::kAgain, Retention::kSave}) {
      if (Done()) break;
      ConstructOptions options{.budget_bytes = request_.budget_bytes,
                               .tail = tail};
      Flags flags = FromCuts(problem_, options, certificate_, generator_,
                             archive_, effort_);
      if (!Done()) {
        Restore(problem_, score, scale_ / 16, generator_, flags, archive_,
                effort_);
      }
      AddStart(flags);
      Report();
    }
    // What fits in less fits too, and is sometimes better.
    for (const int percent : {90, 80, 70}) {
      if (Done() || Best() == nullptr) break;
      const int64_t before = BestAdded();
      ConstructOptions options{
          .budget_bytes =
              problem_.static_bytes +
              (request_.budget_bytes - problem_.static_bytes) / 100 * percent};
      Flags flags = FromCuts(problem_, options, certificate_, generator_,
                             archive_, effort_);
      if (BestAdded() < before) AddStart(flags);
      Report();
    }
  }

  // Equal blocks alike: as many of them as the budget asks for, evenly spread.
  void ConstructBlocks() {
    if (problem_.op_count < kFewestBlockOps) return;
    if (Done() || certificate_.tried().empty()) return;
    OpId at = certificate_.tried().begin()->first;
    for (const auto& [op, window] : certificate_.tried()) {
      if (window.added_ns > certificate_.tried().at(at).added_ns) at = op;
    }
    block_plan_ =
        std::make_unique<BlockPlan>(problem_, FindBlocks(problem_), at);
    effort_.Spend(problem_.op_count);
    if (!block_plan_->empty()) {
      block_plan_->Fit(request_.budget_bytes, certificate_, generator_,
                       archive_, effort_);
      Report();
      ImproveBlocks(scale_ / 4);
    }
    if (!block_plan_->empty()) AddStart(block_plan_->MakeFlags());
  }

  // Block moves: of long steps the main search.
  void ImproveBlocks(int64_t ticks) {
    if (block_plan_ == nullptr || block_plan_->empty() || Done()) return;
    const Score score{.budget_bytes = request_.budget_bytes,
                      .base_time_ns = problem_.base.time_ns,
                      .base_peak_bytes = problem_.base.peak_bytes};
    block_plan_->Improve(score, random_.Next(), ticks, GoodEnough(), generator_,
                         archive_, effort_);
    Report();
  }

  // Exact windows: a better bound, and a keep-set to start from.
  void Sharpen(int64_t ticks) {
    if (Done()) return;
    const int64_t enough = Best() == nullptr ? Score::kWorst : BestAdded();
    const WindowResult window = certificate_.Sharpen(enough, ticks);
    if (window.has_keep_set) StartFrom({window.keep_set}, "exact-cut");
    Report();
    if (!Done()) Combine(2 * ticks);
  }

  // Several windows at once: a better bound still, and schedules that fit at
  // all of them.
  void Combine(int64_t ticks) {
    if (effort_.Over()) return;
    certificate_.Combine(
        Best() == nullptr ? -1 : BestAdded(), ticks,
        [this](const std::vector<KeepSet>& keep_sets, int64_t& incumbent_ns) {
          std::vector<OpId> peaks = StartFrom(keep_sets, "windows");
          if (Best() != nullptr) incumbent_ns = BestAdded();
          return peaks;
        });
    Report();
  }

  // Makes schedules that keep what the windows say. Returns the ops whose
  // first runs, or the re-runs just before them, exceed the budget.
  std::vector<OpId> StartFrom(const std::vector<KeepSet>& keep_sets,
                              const char* solver) {
    std::vector<OpId> peaks;
    for (const Retention tail : {Retention::kAgain, Retention::kSave}) {
      Flags flags = BaseFlags(problem_);
      for (const KeepSet& keep_set : keep_sets) {
        ApplyKeepSet(problem_, keep_set, tail, flags);
      }
      const int64_t before = generator_.ticks();
      const Generated generated = generator_.Generate(flags);
      effort_.Spend(generator_.ticks() - before);
      if (!generated.valid) continue;
      archive_.Add(generated.peak_bytes, generated.time_ns, generator_.execs(),
                   solver);
      // What windows say comes first: it is often a few moves from optimal.
      starts_.insert(starts_.begin(), generator_.execs());
      if (starts_.size() > kMostStarts) starts_.pop_back();
      if (generated.peak_bytes <= request_.budget_bytes) return {};
      if (generated.peak_at != kNoOp && generated.peak_at < problem_.op_count) {
        peaks.push_back(generated.peak_at);
      }
      std::vector<int64_t> bytes(problem_.op_count);
      for (OpId o = 0; o < problem_.op_count; ++o) {
        bytes[o] = generator_.bytes_at()[generator_.first_exec()[o]];
      }
      for (const OpId at :
           LocalPeaks(bytes, 2, std::max(1, problem_.op_count / 64))) {
        if (bytes[at] > request_.budget_bytes) peaks.push_back(at);
      }
    }
    std::sort(peaks.begin(), peaks.end());
    peaks.erase(std::unique(peaks.begin(), peaks.end()), peaks.end());
    return peaks;
  }

  // Schedules found from their end, with ever more room to move in; where there
  // is one, by both measures.
  void UnwindFromMarks(int64_t ticks) {
    const int64_t begin = effort_.ticks();
    for (const int mark_percent : {97, 94, 91, 90, 88, 85, 80, 70}) {
      for (const bool by_distance : {false, true}) {
        const int64_t left = begin + ticks - effort_.ticks();
        if (effort_.Over() || left <= 0) return;
        const UnwindOptions options{.budget_bytes = request_.budget_bytes,
                                    .mark_percent = mark_percent,
                                    .by_distance = by_distance,
                                    .most_ticks = std::min(left, ticks / 3)};
        const std::vector<OpId> execs = Unwind(problem_, options, effort_);
        if (!execs.empty() && AddAndHold(execs, "unwind")) unwound_ = true;
      }
      if (unwound_) return;
    }
  }

  // Schedules from separators, of graphs that few values take apart.
  void TakeApart(int64_t ticks) {
    if (!TreeWidthApplies(problem_)) return;
    const int64_t begin = effort_.ticks();
    const Parts parts = PartsOf(problem_, ticks / 4, effort_);
    for (const int fits_percent : {100, 80, 60, 0}) {
      const int64_t left = begin + ticks - effort_.ticks();
      if (effort_.Over() || left <= 0) return;
      const TreeWidthOptions options{.budget_bytes = request_.budget_bytes,
                                     .fits_percent = fits_percent,
                                     .most_ticks = left};
      const std::vector<OpId> execs =
          TreeWidthExecs(problem_, parts, options, effort_);
      const StatusOr<Evaluation> evaluation = EvaluateExecs(execs);
      if (!evaluation.ok() || evaluation->peak_bytes > request_.budget_bytes) {
        continue;
      }
      AddAndHold(execs, "tree-width");
      return;
    }
  }

  // Schedules by the greedy, for budgets at which dropping by cuts is not
  // enough.
  void Squeeze() {
    for (const int distance_power : {1, 2}) {
      if (effort_.Over()) return;
      const GreedyOptions options{.budget_bytes = request_.budget_bytes,
                                  .distance_power = distance_power,
                                  .most_ticks = scale_ / 4};
      const std::vector<OpId> execs = NextUseGreedy(problem_, options, effort_);
      if (!execs.empty() && AddAndHold(execs, "next-use")) return;
    }
  }

  // A pebbling in any order, brought into base order, where nothing else fits.
  void SearchPebbling(int64_t ticks) {
    if (!FreeOrder::Applies(problem_)) return;
    if (pebbler_ == nullptr) {
      pebbler_ = std::make_unique<Pebbler>(problem_, request_.budget_bytes,
                                           random_.Next());
    }
    const std::vector<OpId> pebbling = pebbler_->Search(ticks, effort_);
    if (pebbling.empty()) return;
    AddAndHold(InBaseOrder(problem_, pebbling, effort_), "pebbling");
  }

  // Execs of a construction that drops too much, and what is left of them once
  // all that fits is held. False where the evaluator does not accept them.
  bool AddAndHold(const std::vector<OpId>& execs, const char* solver) {
    if (!AddExecs(execs, solver)) return false;
    AddExecs(
        HoldMore(problem_, request_.budget_bytes, execs, scale_ / 8, effort_),
        solver);
    Report();
    return true;
  }

  StatusOr<Evaluation> EvaluateExecs(const std::vector<OpId>& execs) const {
    return Evaluate(
        *problem_.graph,
        WithFrees(*problem_.graph, execs, problem_.capabilities.free_policy),
        problem_.capabilities);
  }

  // False where the evaluator does not accept them.
  bool AddExecs(const std::vector<OpId>& execs, const char* solver) {
    const StatusOr<Evaluation> evaluation = EvaluateExecs(execs);
    if (!evaluation.ok()) return false;
    archive_.Add(evaluation->peak_bytes, evaluation->time_ns, execs, solver);
    return true;
  }

  // Windows at the highest points of the best schedule: there its memory is
  // the reason for its time.
  void CertifyIncumbent() {
    const Archive::Point* best = Best();
    if (best == nullptr) return;
    ExecList list(problem_);
    list.Assign(best->execs);
    effort_.Spend(list.ticks());
    std::vector<int64_t> bytes(problem_.op_count);
    for (OpId o = 0; o < problem_.op_count; ++o) bytes[o] = list.BytesAt(o);
    for (const OpId at :
         LocalPeaks(bytes, 6, std::max(1, problem_.op_count / 64))) {
      if (effort_.Over()) return;
      certificate_.Touch(at);
    }
  }

  // Parts of the best schedule decided again, exactly. Their share of the
  // effort grows where they gain something and shrinks where they do not.
  void SearchAround(int64_t ticks) {
    if (Best() == nullptr || Done() || !MipAvailable()) return;
    if (ticks / around_part_ < kFewestAroundTicks) return;
    if (blocks_ == nullptr) {
      blocks_ = std::make_unique<Blocks>(FindBlocks(problem_));
    }
    std::vector<OpId> execs = Best()->execs;
    const NeighbourhoodOptions options{.budget_bytes = request_.budget_bytes,
                                       .ticks = ticks / around_part_,
                                       .seed = request_.seed + ++around_,
                                       .good_enough_ns = GoodEnough()};
    const int64_t before = BestAdded();
    SearchNeighbourhoods(problem_, *blocks_, options, execs, archive_, effort_);
    around_part_ = BestAdded() < before
                       ? std::max<int64_t>(1, around_part_ / 2)
                       : std::min(kMostParts, 2 * around_part_);
    Report();
  }

  // A plan before the bounds take their time: whoever stops the search early
  // should have one.
  void FindAny() {
    std::vector<OpId> execs = BaseExecs();
    const LocalSearchOptions options{.budget_bytes = request_.budget_bytes,
                                     .ticks = scale_ / 16,
                                     .seed = random_.Next(),
                                     .good_enough_ns = GoodEnough(),
                                     .hot = kHot};
    LocalSearch(problem_, options, execs, archive_, effort_);
    Report();
  }

  // Rounds of annealing, each longer than the last: hot from the base order,
  // which forgets what the constructions got wrong, then cooler from the best
  // schedule; now and then from what windows and cuts say to keep.
  void Improve() {
    int64_t ticks = std::max<int64_t>(scale_ / 6, 1);
    int stalled = 0;  // rounds without a gain
    for (int round = 0;; ++round) {
      if (request_.until_stopped) effort_.AllowAtLeast(5 * ticks + 5 * scale_);
      effort_.Spend(1000);  // a round without a single candidate ends too
      if (Best() == nullptr && !squeezed_ &&
          (round >= 2 || effort_.ticks() > scale_ / 2)) {
        squeezed_ = true;
        Squeeze();
      }
      if (Best() == nullptr && round >= 2) {
        SearchPebbling(std::max(4 * ticks, 4 * scale_));
      }
      if (problem_.op_count > kMostPolishedOps) ImproveBlocks(ticks);
      if (Done()) break;
      std::vector<OpId> execs = BaseExecs();
      int hot = kHot;
      if (round % 4 == 3 && !starts_.empty()) {
        execs = starts_[static_cast<size_t>(round / 4) % starts_.size()];
        hot += 1;
      } else if (round % 2 == 1 && Best() != nullptr) {
        execs = Best()->execs;
        hot += 2;
      }
      const int64_t before = BestAdded();
      const LocalSearchOptions options{
          .budget_bytes = request_.budget_bytes,
          .ticks = std::min(ticks, effort_.most_ticks() - effort_.ticks()),
          .seed = random_.Next(),
          .good_enough_ns = GoodEnough(),
          .hot = hot,
      };
      LocalSearch(problem_, options, execs, archive_, effort_);
      Report();
      stalled = BestAdded() < before ? 0 : stalled + 1;
      if (stalled >= kStalledRounds) {
        SearchAround(ticks);
        stalled = 0;
      }
      if (!Done()) CertifyIncumbent();
      if (round % 2 == 1) {
        Sharpen(ticks / 4);
        ticks = ticks * 3 / 2;
      }
    }
  }

  // The target gap is reached; a little more often closes it.
  void Polish() {
    const int64_t share = scale_ / 16;
    if (Best() == nullptr || effort_.Over() || Proven()) return;
    if (problem_.op_count > kMostPolishedOps) return;
    certificate_.Sharpen(BestAdded(), share);
    Combine(share);
    const int64_t optimum = problem_.base.time_ns + certificate_.added_ns();
    if (!Proven()) {
      std::vector<OpId> execs = Best()->execs;
      const LocalSearchOptions options{.budget_bytes = request_.budget_bytes,
                                       .ticks = share,
                                       .seed = random_.Next(),
                                       .good_enough_ns = optimum,
                                       .hot = 10};
      LocalSearch(problem_, options, execs, archive_, effort_);
    }
    if (!Proven()) {
      CertifyIncumbent();
      certificate_.Sharpen(BestAdded(), share);
      Combine(share);
    }
    Report();
  }

  const Problem& problem_;
  const Request& request_;
  Known& known_;
  Generator& generator_;
  Archive& archive_;
  Effort& effort_;
  Certificate certificate_;
  Random random_;
  std::vector<std::vector<OpId>> starts_;
  bool squeezed_ = false;
  std::unique_ptr<BlockPlan> block_plan_;
  std::unique_ptr<Blocks> blocks_;
  uint64_t around_ = 0;      // runs of SearchAround
  int64_t around_part_ = 4;  // its part of the ticks of a round
  bool unwound_ = false;
  std::unique_ptr<Pebbler> pebbler_;
  const int64_t scale_;  // shares of the effort are parts of this
};

}  // namespace

Solution Solve(const Problem& problem, const Request& request, Known& known,
               Effort& effort) {
  if (problem.capabilities.execution == Execution::kFree) {
    return Search(problem, request, known, effort).Run();
  }
  // Any schedule under the same rules: its bound holds for the executor, and
  // its plans are where the executor's own begin.
  Known any(problem);
  const int64_t half = effort.most_ticks() / 2;
  Effort first(half, effort.should_stop());
  Solution solution = Search(problem, request, any, first).Run();
  effort.Spend(first.ticks());
  if (!solution.impossible) {
    SearchRegions(problem, request.budget_bytes, solution.added_ns, request,
                  any.archive, known.generator, known.archive, effort);
  }
  return solution;
}

}  // namespace reprise::planner
