// SPDX-License-Identifier: Apache-2.0
#include "planner/solve.h"

#include <algorithm>

#include "base/str_cat.h"
#include "planner/construct.h"
#include "planner/exec_list.h"
#include "planner/greedy.h"
#include "planner/local_search.h"
#include "planner/strategy.h"

namespace reprise::planner {
namespace {

double Overhead(int64_t added_ns, int64_t base_time_ns) {
  if (base_time_ns <= 0) return 0;
  return static_cast<double>(added_ns) / static_cast<double>(base_time_ns);
}

// Search: the state of one solve.
class Search {
 public:
  Search(const Problem& problem, const Request& request, Generator& generator,
         Archive& archive, Effort& effort)
      : problem_(problem),
        request_(request),
        generator_(generator),
        archive_(archive),
        effort_(effort),
        certificate_(problem, request.budget_bytes, effort),
        random_(request.seed) {}

  Solution Run() {
    if (problem_.base.peak_bytes <= request_.budget_bytes) return {};
    if (!certificate_.impossible()) {
      CertifyBase(problem_, request_.budget_bytes, effort_.most_ticks() / 8,
                  certificate_, effort_);
    }
    if (certificate_.impossible()) return Refuse();
    Report();
    AddStrategies();
    Construct();
    if (Best() == nullptr) {
      certificate_.TryPebbling(effort_.most_ticks() / 16);
      if (certificate_.impossible()) return Refuse();
    }
    Sharpen(effort_.most_ticks() / 8);
    if (Best() == nullptr && problem_.op_count <= kMostBeamOps) Squeeze();
    Improve();
    if (Best() == nullptr && request_.max_ticks == 0) {
      // Nothing fits yet and nobody limited the effort: once as much again.
      effort_.Extend(effort_.most_ticks() * 5 / 4);
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
    const Infeasible infeasible = ProveMore(problem_, certificate_.infeasible(),
                                            effort_.most_ticks() / 32, effort_);
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
    // A MIP proves up to its tolerance.
    const double least =
        kMipTolerance * static_cast<double>(problem_.base.time_ns);
    return problem_.base.time_ns + certificate_.added_ns() +
           static_cast<int64_t>(std::max(slack, least));
  }
  // Up to what a MIP proves.
  bool Proven() const {
    const double gap =
        static_cast<double>(BestAdded() - certificate_.added_ns());
    return gap <= kMipTolerance * static_cast<double>(problem_.base.time_ns);
  }
  bool Done() const {
    return effort_.Over() ||
           (Best() != nullptr && Best()->time_ns <= GoodEnough());
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
    const int64_t before = generator_.ticks();
    for (const Candidate& candidate :
         StrategyCandidates(problem_, Strategy::kAuto, generator_)) {
      archive_.Add(candidate.peak_bytes, candidate.time_ns, candidate.execs,
                   std::string(NameOf(candidate.strategy)));
    }
    effort_.Spend(generator_.ticks() - before);
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
        Restore(problem_, score, effort_.most_ticks() / 16, generator_, flags,
                archive_, effort_);
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

  // Exact windows: a better bound, and a keep-set to start from.
  void Sharpen(int64_t ticks) {
    if (Done()) return;
    const int64_t enough = Best() == nullptr ? Score::kWorst : BestAdded();
    const WindowResult window = certificate_.Sharpen(enough, ticks);
    if (window.has_keep_set) StartFrom({window.keep_set}, "exact-cut");
    Report();
    if (!Done()) Combine(ticks);
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
      if (starts_.size() < 4) starts_.push_back(generator_.execs());
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

  // Schedules by the greedy, for budgets at which dropping by cuts is not
  // enough.
  void Squeeze() {
    for (const int distance_power : {1, 2}) {
      if (effort_.Over()) return;
      const GreedyOptions options{.budget_bytes = request_.budget_bytes,
                                  .distance_power = distance_power,
                                  .most_ticks = effort_.most_ticks() / 4};
      const std::vector<OpId> execs = NextUseGreedy(problem_, options, effort_);
      if (execs.empty()) continue;
      const StatusOr<Evaluation> evaluation = Evaluate(
          *problem_.graph,
          WithFrees(*problem_.graph, execs, problem_.capabilities.free_policy),
          problem_.capabilities);
      if (!evaluation.ok()) continue;
      archive_.Add(evaluation->peak_bytes, evaluation->time_ns, execs,
                   "next-use");
      const std::vector<OpId> held =
          HoldMore(problem_, request_.budget_bytes, execs,
                   effort_.most_ticks() / 8, effort_);
      const StatusOr<Evaluation> better = Evaluate(
          *problem_.graph,
          WithFrees(*problem_.graph, held, problem_.capabilities.free_policy),
          problem_.capabilities);
      if (better.ok()) {
        archive_.Add(better->peak_bytes, better->time_ns, held, "next-use");
      }
      Report();
      return;
    }
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

  void Improve() {
    // Rounds of annealing, each longer than the last; they start from the
    // constructed flags in turn and from the best schedule.
    int64_t ticks = std::max<int64_t>(effort_.most_ticks() / 2, 1);
    for (int round = 0; !Done(); ++round) {
      effort_.Spend(1000);  // a round without a single candidate ends too
      if (Best() == nullptr && !squeezed_ &&
          effort_.ticks() > effort_.most_ticks() / 2) {
        squeezed_ = true;
        Squeeze();
        if (Done()) break;
      }
      std::vector<OpId> execs;
      const Archive::Point* best = Best();
      const size_t start = round % std::max<size_t>(1, starts_.size());
      const bool from_start = static_cast<size_t>(round) < starts_.size() ||
                              best == nullptr || round % 3 == 2;
      if (from_start && !starts_.empty()) {
        execs = starts_[start];
      } else if (best != nullptr) {
        execs = best->execs;
      } else {
        execs = BaseExecs();
      }
      LocalSearchOptions options{
          .budget_bytes = request_.budget_bytes,
          .ticks = std::min(ticks, effort_.most_ticks() - effort_.ticks()),
          .seed = random_.Next(),
          .good_enough_ns = GoodEnough(),
          .hot = from_start ? 7 : 9,
      };
      LocalSearch(problem_, options, execs, archive_, effort_);
      if (from_start && !starts_.empty()) starts_[start] = execs;
      if (!Done()) CertifyIncumbent();
      if (round % 2 == 1) Sharpen(effort_.most_ticks() / 16);
      Report();
      if (static_cast<size_t>(round) >= starts_.size()) ticks = ticks * 3 / 2;
    }
  }

  // The target gap is reached; a little more often closes it.
  void Polish() {
    const int64_t share = effort_.most_ticks() / 16;
    if (Best() == nullptr || effort_.Over() || Proven()) return;
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
  Generator& generator_;
  Archive& archive_;
  Effort& effort_;
  Certificate certificate_;
  Random random_;
  std::vector<std::vector<OpId>> starts_;
  bool squeezed_ = false;
};

}  // namespace

Status CheckRequest(const Request& request) {
  if (request.budget_bytes < 0) {
    return InvalidArgument(StrCat("budget_bytes: must not be negative, got ",
                                  request.budget_bytes));
  }
  if (request.max_ticks < 0) {
    return InvalidArgument(
        StrCat("max_ticks: must not be negative, got ", request.max_ticks));
  }
  if (!(request.target_gap >= 0) || request.target_gap > 1e6) {
    return InvalidArgument("target_gap: must be between 0 and 1000000");
  }
  if (request.capabilities.max_runs < 0) {
    return InvalidArgument(
        StrCat("capabilities.max_runs: must not be negative, "
               "got ",
               request.capabilities.max_runs));
  }
  const int64_t ns_per_op = request.capabilities.ns_per_op;
  if (ns_per_op < 0 || ns_per_op > 1'000'000'000) {
    return InvalidArgument(
        StrCat("capabilities.ns_per_op: must be between 0 "
               "and 1000000000, got ",
               ns_per_op));
  }
  return OkStatus();
}

void AddBase(const Problem& problem, Archive& archive) {
  std::vector<OpId> execs(problem.op_count);
  for (OpId o = 0; o < problem.op_count; ++o) execs[o] = o;
  archive.Add(problem.base.peak_bytes, problem.base.time_ns, execs, "base");
}

int64_t DefaultTicks(const Problem& problem) {
  (void)problem;
  return 200'000'000;
}

void CertifyBase(const Problem& problem, int64_t budget_bytes, int64_t ticks,
                 Certificate& certificate, Effort& effort) {
  const int64_t begin = effort.ticks();
  for (const OpId at :
       LocalPeaks(problem.base_bytes, 9, std::max(1, problem.op_count / 64))) {
    certificate.Try(at);
    if (effort.Over()) return;
  }
  // Then ever finer: every 2^k-th op whose memory exceeds the budget.
  int stride = 1;
  while (stride < problem.op_count) stride *= 2;
  for (; stride >= 1; stride /= 2) {
    for (OpId at = 0; at < problem.op_count; at += stride) {
      if (problem.base_bytes[at] <= budget_bytes) continue;
      if (effort.ticks() - begin > ticks || effort.Over()) return;
      certificate.Try(at);
    }
  }
}

Infeasible ProveMore(const Problem& problem, Infeasible infeasible,
                     int64_t ticks, Effort& effort) {
  // What rules out one budget more bytes than it has often rules out the next
  // one as well: ask again at the smallest that is left.
  constexpr int kMostRounds = 8;
  const int64_t begin = effort.ticks();
  for (int round = 0; round < kMostRounds; ++round) {
    const int64_t left = ticks - (effort.ticks() - begin);
    if (left <= 0 || effort.Over()) break;
    Certificate certificate(problem, infeasible.smallest_budget_bytes, effort);
    CertifyBase(problem, infeasible.smallest_budget_bytes, left / 4,
                certificate, effort);
    if (!certificate.impossible()) certificate.TryPebbling(left / 4);
    if (!certificate.impossible()) break;
    infeasible = certificate.infeasible();
  }
  return infeasible;
}

Solution Solve(const Problem& problem, const Request& request,
               Generator& generator, Archive& archive, Effort& effort) {
  return Search(problem, request, generator, archive, effort).Run();
}

StatusOr<Plan> PlanFrom(const Problem& problem, int64_t budget_bytes,
                        const Solution& solution, const Archive& archive) {
  const StepGraph& graph = *problem.graph;
  Plan plan;
  plan.base_peak_bytes = problem.base.peak_bytes;
  plan.base_time_ns = problem.base.time_ns;
  plan.bound = Overhead(solution.added_ns, problem.base.time_ns);
  plan.infeasible = solution.infeasible;
  if (archive.Smallest() != nullptr) {
    plan.infeasible.smallest_known_bytes = archive.Smallest()->peak_bytes;
  }
  const Archive::Point* best = archive.Best(budget_bytes);
  if (best == nullptr) {
    plan.undecided = !solution.impossible;
    plan.solver = solution.impossible ? "bound" : "none";
    return plan;
  }
  if (solution.impossible) {
    return Internal("planner: a plan was found for a budget proven impossible");
  }
  plan.schedule =
      WithFrees(graph, best->execs, problem.capabilities.free_policy);
  ASSIGN_OR_RETURN(plan.evaluation,
                   Evaluate(graph, plan.schedule, problem.capabilities));
  const int64_t added = plan.evaluation.time_ns - problem.base.time_ns;
  if (plan.evaluation.peak_bytes > budget_bytes || added < solution.added_ns) {
    return Internal("planner: the evaluator disagrees with the search");
  }
  plan.feasible = true;
  plan.infeasible = {};
  plan.overhead = Overhead(added, problem.base.time_ns);
  // A MIP proves up to its tolerance.
  plan.proven_optimal =
      static_cast<double>(added - solution.added_ns) <=
      kMipTolerance * static_cast<double>(problem.base.time_ns);
  plan.solver = best->solver;

  std::vector<uint8_t> ran(problem.op_count, 0);
  std::vector<uint8_t> present(problem.bytes.size(), 0);
  std::vector<int32_t> lives(problem.bytes.size(), 0);
  plan.decisions.assign(problem.bytes.size(), Decision::kSave);
  bool backward = false;
  for (const Entry& entry : plan.schedule) {
    if (entry.kind == Entry::Kind::kFree) {
      present[entry.id] = 0;
      continue;
    }
    const OpId o = entry.id;
    if (!backward && graph.ops[o].phase == Phase::kBackward) {
      backward = true;
      for (StorageId s = 0; s < graph.storage_count(); ++s) {
        if (present[s] != 0) plan.saved.push_back(s);
      }
    }
    if (ran[o] != 0) plan.recomputed_ops.push_back(o);
    ran[o] = 1;
    for (const StorageId s : problem.Writes(o)) {
      if (present[s] == 0) ++lives[s];
      present[s] = 1;
    }
    // A second life that somebody reads: recomputed. One that nobody reads is
    // a by-product of its op.
    for (const StorageId s : graph.ops[o].reads) {
      if (lives[s] > 1) plan.decisions[s] = Decision::kRecompute;
    }
  }
  return plan;
}

}  // namespace reprise::planner
