// SPDX-License-Identifier: Apache-2.0
#include "planner/search/solve.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "planner/bounds/screen.h"
#include "planner/construct/construct.h"
#include "planner/once/search_once.h"
#include "planner/search/search.h"

namespace reprise::planner {
namespace {

// More effort if the first schedule was hard to find.
constexpr int64_t kTightScales = 2;
// Larger steps get no effort beyond the initial one.
constexpr int kMostFarOps = 10'000;
// Steps that are squeezed at once: for larger ones, that takes long.
constexpr int kMostSqueezedOps = 256;
// The optimum of some windows is worth starting from if it is below the best
// plan's added time by at most this part of it.
constexpr int64_t kNearPart = 8;
// The pass of executors of kind `once`, and which part of half of the ticks it
// may take before anything else.
constexpr std::string_view kOnceName = "saved-set";
constexpr int64_t kBeginPart = 8;

}  // namespace

// ---- The list: name, share in 1/64, when, what ----

// Run once, with the ticks of the request.
const Search::Pass Search::kFirst[] = {
    {"base-windows", 8, &Search::IsOpen, &Search::CertifyBaseOrder},
    {"by-name", 0, nullptr, &Search::AddStrategies, Part::kImprove},
    {"min-cut", 4, &Search::IsOpen, &Search::Construct},
    {"blocks", 16, &Search::IsOpen, &Search::ConstructBlocks},
    // For graphs without versions, a schedule from the end is found at once or
    // late.
    {"unwind", 1, &Search::HasNonePlain, &Search::UnwindFromMarks},
    {"chains", 0, &Search::HasNone, &Search::AddChains, Part::kImprove},
    {"looking-back", 4, &Search::HasNone, &Search::LookBack, Part::kProve},
    // For graphs with versions, the main search finds tighter schedules, and
    // sooner, than for others.
    {"any", 4, &Search::HasNoneWithVersions, &Search::FindAny, Part::kImprove},
    {"unwind", 48, &Search::HasNone, &Search::UnwindFromMarks, Part::kImprove},
    {"any", 4, &Search::HasNonePlain, &Search::FindAny, Part::kImprove},
    {"first-annealing", 2, &Search::IsSmall, &Search::AnnealFirst},
    {"refute", 24, &Search::IsSmallWithPlan, &Search::Refute, Part::kProve},
    {"near-windows", 8, &Search::HasNearStarts, &Search::AnnealStarts},
    {"base-windows", 8, &Search::IsSmall, &Search::CertifyBaseOrder,
     Part::kProve},
    {"chains", 0, &Search::IsOpen, &Search::AddChains, Part::kImprove},
    {"many-windows", 16, &Search::IsSmall, &Search::Combine, Part::kProve},
    {"near-windows", 8, &Search::HasStarts, &Search::AnnealStarts},
    {"refute", 8, &Search::IsSmallWithPlan, &Search::Refute, Part::kProve},
    {"squeeze", 16, &Search::IsTightAndSmall, &Search::Squeeze},
};

// Run in each round, with the ticks of that round.
const Search::Pass Search::kRound[] = {
    {"squeeze", 96, &Search::IsLateAndNone, &Search::Squeeze},
    {"segments", 256, &Search::HasSegments, &Search::ConstructSegments,
     Part::kImprove},
    {"block-moves", 64, &Search::HasBlocks, &Search::ImproveBlocks},
    {"joined-bursts", 16, &Search::IsTightAtOnePlace, &Search::Join,
     Part::kImprove},
    {"squeeze", 16, &Search::IsOddRoundAndTight, &Search::Squeeze,
     Part::kImprove},
    {"annealing", 64, &Search::IsOpen, &Search::Anneal},
    {"refute", 24, &Search::IsSmallWithPlan, &Search::Refute, Part::kProve},
    {"nested-windows", 48, &Search::IsOddRoundAndLarge, &Search::Nest,
     Part::kProve},
    {"many-windows", 32, &Search::IsOddRound, &Search::Combine, Part::kProve},
};

// The same for a long step, if the search runs until it is stopped: short
// annealings find little there.
const Search::Pass Search::kLongRound[] = {
    {"segments", 96, &Search::HasSegments, &Search::ConstructSegments,
     Part::kImprove},
    {"block-moves", 21, &Search::HasBlocks, &Search::ImproveBlocks},
    {"joined-bursts", 8, &Search::IsTightAtOnePlace, &Search::Join,
     Part::kImprove},
    {"annealing", 64, &Search::IsOpen, &Search::Anneal},
    {"nested-windows", 16, &Search::IsLargeWithPlan, &Search::Nest,
     Part::kProve},
    {"many-windows", 12, &Search::IsOddRound, &Search::Combine, Part::kProve},
};

// Run if the search ended far from its bound: a schedule found another way is
// sometimes a better start.
const Search::Pass Search::kFar[] = {
    {"unwind", 32, &Search::IsLoose, &Search::UnwindFromMarks},
};

// Run when the target gap is reached: a little more effort often closes the
// gap.
const Search::Pass Search::kLast[] = {
    {"many-windows", 4, &Search::IsAlmostDone, &Search::Combine},
    {"near-windows", 2, &Search::HasStartsLeft, &Search::AnnealStarts},
    {"annealing", 11, &Search::IsAlmostDone, &Search::Anneal},
    {"many-windows", 4, &Search::IsAlmostDone, &Search::Combine},
};

std::vector<PassRule> Search::Rules() {
  constexpr std::pair<bool (Search::*)() const, std::string_view> kWhen[] = {
      {nullptr, "always"},
      {&Search::IsOpen, "the gap is above the target"},
      {&Search::HasNone, "no plan yet"},
      {&Search::HasNonePlain, "no plan yet, for a graph without versions"},
      {&Search::HasNoneWithVersions, "no plan yet, for a graph with versions"},
      {&Search::IsTightAndSmall,
       "no plan yet, or unwinding found the first; at most 256 ops"},
      {&Search::IsLateAndNone, "no plan after two rounds, at most 1500 ops"},
      {&Search::IsSmall, "at most 1500 ops"},
      {&Search::HasSegments, "segments left to try, at least 400 ops"},
      {&Search::IsSmallWithPlan, "a plan, at most 1500 ops"},
      {&Search::IsTightAtOnePlace,
       "after two rounds, nested windows prove less than a hundredth more, "
       "more than 1500 ops"},
      {&Search::IsOddRoundAndLarge,
       "every second round, with a plan, more than 1500 ops"},
      {&Search::IsLargeWithPlan, "a plan, more than 1500 ops"},
      {&Search::HasNearStarts, "refute found a near optimum of windows"},
      {&Search::HasStarts, "windows gave a first plan, at most 1500 ops"},
      {&Search::HasStartsLeft, "the same, after the gap is reached"},
      {&Search::HasBlocks, "equal blocks, more than 1500 ops"},
      {&Search::IsOddRound, "every second round"},
      {&Search::IsOddRoundAndTight,
       "every second round, if tight, at most 256 ops"},
      {&Search::IsLoose, "more than 0.5 % above the bound"},
      {&Search::IsAlmostDone, "not proven yet, at most 1500 ops"},
  };
  const std::pair<std::span<const Pass>, std::string_view> stages[] = {
      {kFirst, "first"},
      {kRound, "round"},
      {kLongRound, "long-round"},
      {kFar, "far"},
      {kLast, "last"}};
  std::vector<PassRule> rules;
  for (const auto& [passes, stage] : stages) {
    for (const Pass& pass : passes) {
      const auto* when = std::find_if(
          std::begin(kWhen), std::end(kWhen),
          [&](const auto& entry) { return entry.first == pass.wanted; });
      rules.push_back({.stage = stage,
                       .name = pass.name,
                       .when = when == std::end(kWhen) ? "" : when->second,
                       .share_64 = static_cast<int>(pass.share)});
    }
  }
  return rules;
}

std::vector<PassRule> PassRules() { return Search::Rules(); }

bool Search::IsTightAndSmall() const {
  return IsTight() && problem_.op_count <= kMostSqueezedOps;
}

bool Search::IsLateAndNone() const {
  return HasNone() && HasFewOps() && log_.Runs("squeeze") == 0 &&
         (round_ >= 2 || effort_.ticks() > scale_ / 2);
}

bool Search::HasNearStarts() const {
  return HasStarts() && certificate_.is_near() &&
         BestAdded() - BoundNs() <= BestAdded() / kNearPart;
}

bool Search::IsFar() const {
  return problem_.op_count <= kMostFarOps && Best()->time_ns > GoodEnough() &&
         BestAdded() - BoundNs() > problem_.base.time_ns / 200;
}

PassLog::State Search::Now() const {
  return {.ticks = effort_.ticks(),
          .added_ns = HasNone() ? -1 : BestAdded(),
          .bound_ns = BoundNs()};
}

void Search::RunAll(std::span<const Pass> passes, int64_t ticks) {
  for (const Pass& pass : passes) {
    if (certificate_.impossible()) return;
    const bool wanted =
        pass.wanted == nullptr || (!effort_.Over() && (this->*pass.wanted)());
    const bool shared = request_.exchange != nullptr &&
                        request_.part != Part::kAll && pass.part != Part::kAll;
    if (!wanted || (shared && pass.part != request_.part)) continue;
    if (IsLeftOut(pass.name)) continue;
    (this->*pass.run)(
        static_cast<int64_t>(static_cast<__int128>(ticks) * pass.share / 64));
    log_.Add(pass.name, Now());
    Trade();
    Report(pass.name);
  }
}

bool Search::IsLeftOut(std::string_view name) const {
  const std::vector<std::string>& without = request_.without;
  return std::find(without.begin(), without.end(), name) != without.end();
}

void Search::Improve() {
  const bool is_long = request_.until_stopped && !HasFewOps();
  const std::span<const Pass> passes =
      is_long ? std::span<const Pass>(kLongRound) : kRound;
  int64_t ticks = std::max<int64_t>(is_long ? scale_ : scale_ / 6, 1);
  for (round_ = 0;; ++round_) {
    if (request_.until_stopped) effort_.AllowAtLeast(5 * ticks + 5 * scale_);
    if (Done() || certificate_.impossible()) return;
    effort_.Spend(1000);  // so that a round without candidates ends
    log_.Add("rounds", Now());
    RunAll(passes, ticks);
    if (round_ % 2 == 1) ticks = ticks * 3 / 2;
  }
}

bool Search::TakesPlans() const {
  if (request_.part != Part::kProve || !HasFewOps()) return true;
  return log_.Runs("base-windows") > 1 ||
         (HasNone() && log_.Runs("first-annealing") > 0);
}

void Search::Trade() {
  Exchange* exchange = request_.exchange;
  if (exchange == nullptr) return;
  exchange->OfferBound(certificate_.added_ns());
  shared_bound_ns_ = exchange->BoundNs();
  const int64_t time_ns = HasNone() ? Score::kWorst : Best()->time_ns;
  const auto other = exchange->Faster(time_ns);
  if (other && TakesPlans()) {
    archive_.Add(*other);
    log_.Add("exchange", Now());
  } else if (!other && !HasNone()) {
    exchange->Offer(*Best());
  }
}

Solution Search::Run() {
  if (problem_.base.peak_bytes <= request_.budget_bytes) return {};
  log_.Begin(Now());
  RunAll(kFirst, scale_);
  if (certificate_.impossible()) return Refuse();
  Improve();
  if (Best() != nullptr && request_.max_ticks == 0 &&
      (is_plain_ && HasFewOps() ? IsTight() : IsFar())) {
    // Worth the same effort again.
    effort_.AllowAtLeast(kTightScales * scale_);
    RunAll(kFar, scale_);
    Improve();
  }
  if (Best() == nullptr && request_.max_ticks == 0) {
    // The effort was not limited by the request: a late plan is better than
    // none.
    effort_.AllowAtLeast(kTightScales * scale_);
    Improve();
  }
  RunAll(kLast, scale_);
  if (certificate_.impossible() && HasNone()) return Refuse();
  return {.added_ns = certificate_.added_ns(),
          .source = certificate_.source(),
          .impossible = false,
          .infeasible = certificate_.infeasible(),
          .passes = log_.lines()};
}

Solution Search::Refuse() {
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
  log_.Add("refusal", Now());
  return {.added_ns = 0,
          .source = {},
          .impossible = true,
          .infeasible = certificate_.infeasible().smallest_budget_bytes >
                                infeasible.smallest_budget_bytes
                            ? certificate_.infeasible()
                            : infeasible,
          .passes = log_.lines()};
}

namespace {

// Executors of kind `once`: a cheap plan first, then any schedule under the same
// rules, whose bound holds for the executor and whose plans are where its
// own search continues.
Solution SolveOnce(const Problem& problem, const Request& request, Known& known,
                   Effort& effort) {
  const auto added_ns = [&] {
    const Archive::Point* best = known.archive.Best(request.budget_bytes);
    return best == nullptr ? -1 : best->time_ns - problem.base.time_ns;
  };
  const bool fits = problem.base.peak_bytes <= request.budget_bytes;
  const int64_t half = effort.most_ticks() / 2;
  PassLog log;
  Progress progress{.pass = kOnceName};
  const auto now = [&] {
    return PassLog::State{.ticks = effort.ticks(), .added_ns = added_ns()};
  };
  const auto report = [&] {
    if (added_ns() >= 0) {
      progress.overhead = Overhead(added_ns(), problem.base.time_ns);
    }
    if (request.on_progress) request.on_progress(progress);
  };
  Known any(problem);
  Solution solution;
  bool good = false;
  Request of_any = request;
  of_any.until_stopped = false;
  of_any.max_ticks = half;
  of_any.on_progress = [&](const Progress& found) {
    progress.bound = found.bound;
    progress.pass = found.pass;
    good = progress.overhead >= 0 &&
           progress.overhead - found.bound <= request.target_gap;
    report();
  };
  const std::function<bool()> should_stop = [&] {
    return good || (effort.should_stop() && effort.should_stop()());
  };
  const auto search_any = [&]() -> std::pair<const Archive*, int64_t> {
    log.Add(kOnceName, now());
    report();
    Effort first(half, should_stop);
    solution = Search(problem, of_any, any, first).Run();
    effort.Spend(first.ticks());
    log.Begin(now());
    return {fits || solution.impossible ? nullptr : &any.archive,
            solution.added_ns};
  };
  const bool impossible =
      LargestWorkingSet(problem).smallest_budget_bytes > request.budget_bytes;
  log.Begin(now());
  SearchOnce(problem, request, known.generator, known.archive, effort,
             fits || impossible ? 0 : half / kBeginPart, search_any);
  log.Add(kOnceName, now());
  progress.pass = kOnceName;
  report();
  // The executor cannot run these schedules.
  for (PassLine& line : solution.passes) {
    line.first_added_ns = -1;
    line.plan_gain_ns = 0;
  }
  solution.passes.insert(solution.passes.end(), log.lines().begin(),
                         log.lines().end());
  return solution;
}

}  // namespace

Solution Solve(const Problem& problem, const Request& request, Known& known,
               Effort& effort) {
  return problem.capabilities.execution == Execution::kFree
             ? Search(problem, request, known, effort).Run()
             : SolveOnce(problem, request, known, effort);
}

}  // namespace reprise::planner
