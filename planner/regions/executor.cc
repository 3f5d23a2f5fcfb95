// SPDX-License-Identifier: Apache-2.0
#include "planner/regions/executor.h"

#include <algorithm>
#include <limits>

#include "planner/bounds/window_bound.h"
#include "planner/chains/chain.h"
#include "planner/chains/chain_plan.h"
#include "planner/construct/strategy.h"
#include "planner/model/exec_list.h"
#include "planner/model/random.h"
#include "planner/model/score.h"

namespace reprise::planner {
namespace {

// A level deeper than every home: nothing saves the storage.
constexpr int32_t kDropped = std::numeric_limits<int32_t>::max();

constexpr size_t kMostStarts = 4;

bool IsNested(const Problem& problem) {
  return problem.capabilities.execution == Execution::kNested;
}

// Returns how deep regions may nest.
int MostDepth(const Problem& problem) {
  const int most_runs = problem.capabilities.max_runs;
  return most_runs > 0 ? most_runs - 1 : std::numeric_limits<int>::max();
}

// Returns a single region around the whole forward.
std::vector<Region> OneRegion(const Problem& problem) {
  return {{.begin = 0, .end = problem.first_backward}};
}

// Returns levels: 0 for saved storages, kDropped for others.
std::vector<int32_t> LevelsOf(const SavedSet& saved) {
  std::vector<int32_t> levels;
  for (const uint8_t s : saved) levels.push_back(s != 0 ? 0 : kDropped);
  return levels;
}

// Returns the plan with no level deeper than its home.
RegionPlan Trimmed(const Problem& problem, RegionPlan plan) {
  const std::vector<int32_t> home = HomeDepths(problem, plan.regions);
  for (size_t s = 0; s < home.size(); ++s) {
    plan.levels[s] = std::min(plan.levels[s], home[s]);
  }
  return plan;
}

// Returns the name under which a plan goes to the archive.
std::string SolverName(const Problem& problem, const RegionPlan& plan) {
  if (!IsNested(problem)) return "saved-set";
  return DepthOf(plan) > 1 ? "nested-regions" : "regions";
}

// RegionAnnealing: the search for one kind of executor.
class RegionAnnealing {
 public:
  RegionAnnealing(const Problem& problem, int64_t budget_bytes, uint64_t seed,
                  Archive& archive, Effort& effort)
      : problem_(problem),
        most_depth_(MostDepth(problem)),
        random_(seed),
        archive_(archive),
        effort_(effort),
        list_(problem),
        score_{.budget_bytes = budget_bytes,
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

  // Plans within the budget that take at most this time are good enough.
  void SetGoodEnough(int64_t good_ns) { good_ns_ = good_ns; }

  // Returns whether a plan is good enough.
  bool Good() const {
    const Archive::Point* best = archive_.Best(score_.budget_bytes);
    return best != nullptr && best->time_ns <= good_ns_;
  }
  // Returns whether the effort is over, or a plan is good enough.
  bool Done() const { return effort_.Over() || Good(); }

  // Returns the score of a plan and adds the plan to the archive.
  int64_t Try(const RegionPlan& plan) {
    const std::vector<OpId> execs = RegionExecs(problem_, plan);
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
    const int64_t score = score_.Of(figures);
    const Archive::Point* best = archive_.Best(figures.peak_bytes);
    if (best == nullptr || best->time_ns > figures.time_ns) {
      // The evaluator must confirm the plan.
      if (!AddRegions(problem_, plan, SolverName(problem_, plan), archive_)) {
        return Score::kWorst;
      }
    }
    return score;
  }

  // Anneals from a plan for at most this many ticks.
  void Run(RegionPlan plan, int64_t ticks) {
    if (decisions_.empty() || Done()) return;
    int64_t now = Try(plan);
    const int64_t begin = effort_.ticks();
    while (!Done() && effort_.ticks() - begin < ticks) {
      // Temperature from 2^-8 to 2^-18 of the base time.
      const int64_t spent = effort_.ticks() - begin;
      const int shift = 8 + static_cast<int>(10 * spent / (ticks + 1));
      RegionPlan next = plan;
      for (int moves = random_.Percent(25) ? 2 : 1; moves > 0; --moves) {
        if (IsNested(problem_) && random_.Percent(25)) {
          ChangeRegions(next);
        } else {
          ChangeLevel(next);
        }
      }
      const int64_t score = Try(next);
      const int64_t slack =
          static_cast<int64_t>(static_cast<__int128>(random_.Exponential16()) *
                                   (problem_.base.time_ns >> shift) >>
                               16);
      if (score == Score::kWorst || score > now + slack) continue;
      plan = std::move(next);
      now = score;
    }
  }

 private:
  // Changes the level of a random storage.
  void ChangeLevel(RegionPlan& plan) {
    const StorageId s =
        decisions_[random_.Below(static_cast<int64_t>(decisions_.size()))];
    int32_t& level = plan.levels[s];
    // Levels in between only make sense if regions nest: most homes are not
    // that deep.
    if (most_depth_ > 1 && plan.regions.size() > 1 && random_.Percent(30)) {
      level = 1 + random_.Below(3);
    } else {
      level = level == 0 ? kDropped : 0;
    }
  }

  // Returns a random length, more often short than long.
  OpId Length() {
    int64_t length = 1;
    while (length < problem_.first_backward && random_.Percent(75)) {
      length += 1 + length / 2;
    }
    return static_cast<OpId>(
        std::min<int64_t>(length, problem_.first_backward));
  }

  // Adds, removes or resizes a random region.
  void ChangeRegions(RegionPlan& plan) {
    std::vector<Region>& regions = plan.regions;
    const int kind = random_.Below(4);
    if (regions.empty() || kind == 0) {
      const OpId begin = random_.Below(problem_.first_backward);
      regions.push_back(
          {begin, std::min(problem_.first_backward, begin + Length())});
    } else {
      const auto which =
          regions.begin() + random_.Below(static_cast<int64_t>(regions.size()));
      if (kind == 1) {
        regions.erase(which);
      } else {
        const OpId by = random_.Percent(50) ? Length() : -Length();
        OpId& bound = kind == 2 ? which->begin : which->end;
        bound = std::clamp<OpId>(bound + by, 0, problem_.first_backward);
      }
    }
    regions = Nested(std::move(regions), most_depth_);
  }

  const Problem& problem_;
  int64_t good_ns_ = 0;
  const int most_depth_;
  Random random_;
  Archive& archive_;
  Effort& effort_;
  ExecList list_;
  const Score score_;
  std::vector<StorageId> decisions_;
};

// Returns one region per stage of a chain.
std::vector<Region> RegionsOfStages(const Chain& chain) {
  std::vector<Region> regions;
  OpId begin = 0;
  for (const OpId end : chain.ends) {
    regions.push_back({begin, end + 1});
    begin = end + 1;
  }
  return regions;
}

// Returns regions that do not nest: the stages of the chain, joined to fewer
// and fewer; a single region if the graph is not a chain.
std::vector<std::vector<Region>> FlatRegions(const Problem& problem) {
  std::vector<std::vector<Region>> all;
  const Chain chain = FindChain(problem);
  for (int stages = std::max(1, chain.stage_count()); stages > 1;
       stages = stages * 2 / 3) {
    all.push_back(RegionsOfStages(JoinStages(problem, chain, stages)));
  }
  all.push_back(OneRegion(problem));
  return all;
}

// Adds recursive divisions into `parts` parts, down to single stages.
void AddParts(const std::vector<Region>& stages, size_t begin, size_t end,
              size_t parts, std::vector<Region>& regions) {
  if (end - begin < 2) return;
  for (size_t i = 0; i < parts; ++i) {
    const size_t from = begin + (end - begin) * i / parts;
    const size_t to = begin + (end - begin) * (i + 1) / parts;
    if (from == to) continue;
    regions.push_back({stages[from].begin, stages[to - 1].end});
    AddParts(stages, from, to, parts, regions);
  }
}

// Returns nested regions: recursive divisions of the chain's stages.
std::vector<std::vector<Region>> NestedRegions(const Problem& problem) {
  std::vector<std::vector<Region>> all;
  const std::vector<Region> stages = RegionsOfStages(FindChain(problem));
  for (const size_t parts : {2, 3, 5, 9, 17}) {
    if (stages.size() <= parts) break;
    std::vector<Region> regions;
    AddParts(stages, 0, stages.size(), parts, regions);
    all.push_back(Nested(std::move(regions), MostDepth(problem)));
  }
  return all;
}

// Returns sets of saved storages to start from, without a search: those of named
// plans, of cuts, and none.
std::vector<SavedSet> SavedSets(const Problem& problem, int64_t budget_bytes,
                                Generator& generator, Effort& effort) {
  std::vector<SavedSet> sets;
  for (const Candidate& candidate :
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

// Plans to start from, with their scores.
class Starts {
 public:
  explicit Starts(RegionAnnealing& search) : search_(search) {}

  // Adds a plan if it is among the best few.
  void Add(const RegionPlan& plan) {
    if (search_.Done()) return;
    const int64_t score = search_.Try(plan);
    if (score == Score::kWorst) return;
    const auto after = std::upper_bound(
        best_.begin(), best_.end(), score,
        [](int64_t s, const auto& start) { return s < start.first; });
    best_.insert(after, {score, plan});
    if (best_.size() > kMostStarts) best_.pop_back();
  }

  // Anneals from each of the plans, with equal shares of the ticks.
  void Improve(int64_t ticks) {
    for (size_t i = 0; i < best_.size() && !search_.Done(); ++i) {
      search_.Run(best_[i].second, ticks / static_cast<int64_t>(best_.size()));
    }
  }

 private:
  RegionAnnealing& search_;
  std::vector<std::pair<int64_t, RegionPlan>> best_;
};

// The search for regions: what it keeps between its two parts.
class RegionSearch {
 public:
  RegionSearch(const Problem& problem, const Request& request,
               Generator& generator, Archive& archive, Effort& effort)
      : problem_(problem),
        request_(request),
        generator_(generator),
        archive_(archive),
        effort_(effort),
        nests_(IsNested(problem) && MostDepth(problem) > 1),
        search_(problem, request.budget_bytes, request.seed, archive, effort),
        flat_(search_),
        nested_(search_) {}

  // Tries what is known without a search; if none of it fits, anneals for the
  // rest of the ticks.
  void Begin(int64_t ticks) {
    const int64_t end = effort_.ticks() + ticks;
    const std::vector<SavedSet> sets =
        SavedSets(problem_, request_.budget_bytes, generator_, effort_);
    regions_ = {OneRegion(problem_)};
    if (IsNested(problem_)) regions_ = FlatRegions(problem_);
    AddFlat(sets, end);
    if (nests_) AddNested(sets.back(), end);
    if (HasNone()) {
      const int64_t left = std::max<int64_t>(0, end - effort_.ticks());
      flat_.Improve(nests_ ? left / 2 : left);
      nested_.Improve(end - effort_.ticks());
    }
  }

  // Continues with schedules that obey the same rules, for the rest of the effort.
  void Continue(const Archive& any, int64_t bound_ns) {
    search_.SetGoodEnough(
        problem_.base.time_ns + bound_ns +
        static_cast<int64_t>(request_.target_gap *
                             static_cast<double>(problem_.base.time_ns)));
    // In long steps, leave time for nested regions.
    const int64_t left = effort_.most_ticks() - effort_.ticks();
    std::vector<const Archive::Point*> found = {any.Best(request_.budget_bytes),
                                                any.Smallest()};
    std::erase(found, nullptr);
    std::vector<SavedSet> sets;
    for (const Archive::Point* point : found) {
      sets.push_back(SavedBy(problem_, point->execs));
    }
    AddFlat(sets, effort_.ticks() + left / (nests_ ? 4 : 1));
    if (nests_ && !found.empty()) {
      AddNested(sets.front(), effort_.most_ticks());
      for (const Archive::Point* point : found) {
        nested_.Add(PlanLike(problem_, point->execs));
      }
    }
    if (nests_) AddChains(left / 8);
    Improve();
    for (int64_t ticks = effort_.most_ticks();
         request_.until_stopped && !effort_.interrupted() && !search_.Good();
         ticks *= 2) {
      effort_.AllowAtLeast(ticks);
      AddBest();
      Improve();
    }
  }

 private:
  bool HasNone() const {
    return archive_.Best(request_.budget_bytes) == nullptr;
  }

  // Adds plans whose regions do not nest, until a tick.
  void AddFlat(const std::vector<SavedSet>& sets, int64_t end) {
    for (const std::vector<Region>& stages : regions_) {
      for (const SavedSet& saved : sets) {
        if (effort_.ticks() >= end) return;
        flat_.Add({.regions = stages, .levels = LevelsOf(saved)});
      }
    }
  }

  // Adds plans of recursive divisions, until a tick.
  void AddNested(const SavedSet& saved, int64_t end) {
    for (const std::vector<Region>& parts : NestedRegions(problem_)) {
      if (effort_.ticks() >= end) return;
      nested_.Add({.regions = parts, .levels = LevelsOf(saved)});
    }
  }

  // Adds the regions of exact solutions of the chain, with `ticks` for each.
  void AddChains(int64_t ticks) {
    ChainSchedules chains(problem_);
    for (const int percent : {100, 95, 85, 70}) {
      if (search_.Done()) return;
      Effort part(std::max<int64_t>(1, ticks), effort_.should_stop());
      const int64_t room =
          (request_.budget_bytes - problem_.static_bytes) / 100 * percent;
      for (const ChainSchedule& schedule :
           chains.For(problem_.static_bytes + room, generator_, part)) {
        nested_.Add(PlanLike(problem_, schedule.execs));
      }
      effort_.Spend(part.ticks());
    }
  }

  // Adds the best plan, for another round.
  void AddBest() {
    const Archive::Point* best = archive_.Best(request_.budget_bytes);
    if (best != nullptr) (nests_ ? nested_ : flat_).Add(best->regions);
  }

  // Anneals for the rest of the effort.
  void Improve() {
    const int64_t left = effort_.most_ticks() - effort_.ticks();
    flat_.Improve(nests_ ? left / 2 : left);
    nested_.Improve(effort_.most_ticks() - effort_.ticks());
  }

  const Problem& problem_;
  const Request& request_;
  Generator& generator_;
  Archive& archive_;
  Effort& effort_;
  const bool nests_;
  RegionAnnealing search_;
  Starts flat_, nested_;
  std::vector<std::vector<Region>> regions_;
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

RegionPlan PlanLike(const Problem& problem, const std::vector<OpId>& execs) {
  if (IsNested(problem)) {
    return RegionsOfExecs(problem, execs, MostDepth(problem));
  }
  return {.regions = OneRegion(problem),
          .levels = LevelsOf(SavedBy(problem, execs))};
}

bool AddRegions(const Problem& problem, const RegionPlan& plan,
                const std::string& solver, Archive& archive) {
  const std::vector<OpId> execs = RegionExecs(problem, plan);
  if (execs.empty()) return false;
  const StatusOr<Evaluation> evaluation = EvaluateExecs(problem, execs);
  if (!evaluation.ok()) return false;
  archive.Add(evaluation->peak_bytes, evaluation->time_ns, execs, solver,
              Trimmed(problem, plan));
  return true;
}

void SearchRegions(const Problem& problem, const Request& request,
                   Generator& generator, Archive& archive, Effort& effort,
                   int64_t begin_ticks, const SearchAny& any) {
  if (problem.first_backward == 0 ||
      problem.first_backward >= problem.op_count || MostDepth(problem) < 1) {
    any();
    return;
  }
  RegionSearch search(problem, request, generator, archive, effort);
  if (begin_ticks > 0) search.Begin(begin_ticks);
  const auto [found, bound_ns] = any();
  if (found != nullptr) search.Continue(*found, bound_ns);
}

}  // namespace reprise::planner
