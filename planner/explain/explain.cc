// SPDX-License-Identifier: Apache-2.0
#include "planner/explain/explain.h"

#include <algorithm>
#include <cmath>
#include <functional>

#include "planner/bounds/certificate.h"
#include "planner/bounds/host_bound.h"
#include "planner/bounds/screen.h"
#include "planner/bounds/window_bound.h"
#include "planner/explain/explain_groups.h"
#include "planner/explain/what_if.h"
#include "planner/model/effort.h"
#include "planner/model/problem.h"

namespace reprise::planner {
namespace {

// Storages that get a counterfactual. Each costs one evaluation; long schedules
// get fewer.
constexpr int kMostWhatIfs = 200;
// Ticks for the price, and execs for all counterfactuals together.
constexpr int64_t kPriceTicks = 40'000'000;
constexpr int64_t kWhatIfExecs = 20'000'000;

// Returns which storages are present while the entry at this position runs.
std::vector<uint8_t> AliveAt(const StepGraph& graph,
                             std::span<const Entry> schedule, int32_t entry) {
  std::vector<uint8_t> alive(graph.storage_count(), 0);
  for (const Lifetime& life : Lifetimes(graph, schedule)) {
    if (life.born <= entry && entry < life.dead) alive[life.storage] = 1;
  }
  return alive;
}

// ---- Price -----------------------------------------------------------------

// Returns the slope of the strongest window's bound: nanoseconds per byte.
double Price(const Problem& problem, int64_t budget_bytes) {
  if (problem.base.peak_bytes <= budget_bytes) return 0;
  const std::function<bool()> never;  // the effort keeps a reference to it
  Effort effort(kPriceTicks, never);
  if (problem.capabilities.link.host_bytes > 0) {
    const BytePrice price =
        BoundWithHost(problem, budget_bytes, kPriceTicks, effort).window.price;
    return std::ldexp(static_cast<double>(price.price), -price.shift);
  }
  Certificate certificate(problem, budget_bytes, effort);
  for (const OpId at :
       LocalPeaks(problem.base_bytes, 9, std::max(1, problem.op_count / 64))) {
    if (effort.Over()) break;
    certificate.Try(at);
  }
  OpId strongest = kNoOp;
  int64_t added_ns = 0;
  for (const auto& [at, window] : certificate.tried()) {
    if (window.impossible || window.added_ns <= added_ns) continue;
    strongest = at;
    added_ns = window.added_ns;
  }
  if (strongest == kNoOp) return 0;
  const int64_t step = std::max<int64_t>(
      1, (problem.base.peak_bytes - problem.static_bytes) / 256);
  WindowBound window(problem, strongest);
  const WindowResult more = window.Solve(budget_bytes + step);
  return static_cast<double>(added_ns - more.added_ns) /
         static_cast<double>(step);
}

// ---- Why -------------------------------------------------------------------

// Returns whether a version of it cannot be recomputed only because of this
// executor.
bool OnlyExecutorForbids(const Problem& problem, StorageId s) {
  const Versions& versions = problem.versions;
  const Capabilities& capabilities = problem.capabilities;
  for (ValueId v = versions.first_value[s]; v <= versions.Last(s); ++v) {
    const OpId maker = versions.maker[v];
    if (problem.rules.may_rerun[maker] != 0) continue;
    switch (problem.graph->ops[maker].kind) {
      case OpKind::kOnce:
        return false;
      case OpKind::kSeeded:
      case OpKind::kCollective:
        return true;
      case OpKind::kPure:
      case OpKind::kView:
        return capabilities.recompute_in_backward_only ||
               capabilities.max_runs == 1;
    }
  }
  return false;
}

// Returns whether every version of a storage may be recomputed.
bool MayRemake(const Problem& problem, StorageId s) {
  const Versions& versions = problem.versions;
  for (ValueId v = versions.first_value[s]; v <= versions.Last(s); ++v) {
    if (problem.rules.may_remake[v] == 0) return false;
  }
  return true;
}

struct Facts {
  double price_ns_per_byte = 0;
  int64_t peak_bytes = 0;
  // By storage: the most readers of one of its later lives.
  std::vector<int32_t> readers_of_second_life;
};

// Returns the reason for a decision, one of those in explain.h.
std::string Why(const Problem& problem, const Facts& facts,
                const StorageExplanation& explained) {
  const StorageId s = explained.storage;
  const auto bytes = static_cast<double>(problem.bytes[s]);
  const bool worth = static_cast<double>(explained.recompute_ns) <=
                     facts.price_ns_per_byte * bytes;
  if (explained.decision == Decision::kOffload) {
    return explained.copy_slack_ns >= 0 ? "hidden" : "awaited";
  }
  if (problem.graph->storages[s].pinned) return "pinned";
  if (explained.decision == Decision::kRecompute) {
    if (worth) return "cheap";
    return facts.readers_of_second_life[s] > 1 ? "shared" : "needed";
  }
  if (!MayRemake(problem, s)) {
    return OnlyExecutorForbids(problem, s) ? "capability" : "not_repeatable";
  }
  if (problem.bytes[s] < facts.peak_bytes / 1000) return "small";
  if (!explained.alive_at_base_peak && !explained.alive_at_peak) {
    return "no_gain";
  }
  return facts.price_ns_per_byte > 0 ? "costly" : "room";
}

// ---- Storages --------------------------------------------------------------

// The result of one walk over the schedule.
struct Walk {
  std::vector<Decision> decisions;
  std::vector<std::vector<StorageLife>> lives;
  std::vector<int32_t> readers_of_second_life;
  std::vector<int64_t> copy_slack_ns;
  std::vector<int32_t> made;  // by storage: lives that an op began
};

// Finds the lives of all storages, and which were recomputed.
Walk WalkSchedule(const Problem& problem, const Schedule& schedule) {
  const StepGraph& graph = *problem.graph;
  Walk walk;
  walk.decisions.assign(graph.storage_count(), Decision::kSave);
  walk.lives.resize(graph.storage_count());
  walk.readers_of_second_life.assign(graph.storage_count(), 0);
  std::vector<int32_t> exec_of;  // by entry
  std::vector<int64_t> start_ns = {0};
  std::vector<uint8_t> ran(graph.op_count(), 0);
  std::vector<int32_t> lives(graph.storage_count(), 0);
  std::vector<int32_t> readers(graph.storage_count(), 0);
  std::vector<uint8_t> present(graph.storage_count(), 0);
  // The clocks of the evaluator, and when copies under way end.
  int64_t now_ns = 0, out_ns = 0, in_ns = 0;
  std::vector<int64_t> done_ns(graph.storage_count(), 0);
  walk.copy_slack_ns.assign(graph.storage_count(), 0);
  const Link& link = problem.capabilities.link;
  const auto copy = [&](StorageId s, int64_t bytes_per_s, int64_t& engine_ns) {
    engine_ns = std::max(engine_ns, now_ns) +
                CopyNs(problem.bytes[s], bytes_per_s, link.latency_ns);
    done_ns[s] = engine_ns;
  };
  for (const Entry& entry : schedule) {
    exec_of.push_back(static_cast<int32_t>(start_ns.size()) - 1);
    const StorageId s = entry.id;
    if (entry.kind == Entry::Kind::kSend) copy(s, link.out_bytes_per_s, out_ns);
    if (entry.kind == Entry::Kind::kFetch) copy(s, link.in_bytes_per_s, in_ns);
    if (entry.kind == Entry::Kind::kSent ||
        entry.kind == Entry::Kind::kFetched) {
      int64_t& slack = walk.copy_slack_ns[s];
      const bool first = walk.decisions[s] != Decision::kOffload;
      slack =
          std::min(first ? now_ns - done_ns[s] : slack, now_ns - done_ns[s]);
      walk.decisions[s] = Decision::kOffload;
      now_ns = std::max(now_ns, done_ns[s]);
      start_ns.back() = now_ns;
    }
    if (entry.kind != Entry::Kind::kExec) {
      present[s] =
          entry.kind != Entry::Kind::kFree && entry.kind != Entry::Kind::kSent;
      continue;
    }
    const Op& op = graph.ops[entry.id];
    for (const StorageId s : op.writes) {
      if (present[s] != 0) continue;
      present[s] = 1;
      readers[s] = 0;
      ++lives[s];
    }
    for (const StorageId s : op.reads) {
      ++readers[s];
      if (lives[s] < 2) continue;
      // A second life without readers is a by-product of its op.
      if (walk.decisions[s] == Decision::kSave) {
        walk.decisions[s] = Decision::kRecompute;
      }
      walk.readers_of_second_life[s] =
          std::max(walk.readers_of_second_life[s], readers[s]);
    }
    now_ns +=
        ran[entry.id] != 0 ? problem.rules.rerun_ns[entry.id] : op.time_ns;
    start_ns.push_back(now_ns);
    ran[entry.id] = 1;
  }
  exec_of.push_back(static_cast<int32_t>(start_ns.size()) - 1);
  for (const Lifetime& life : Lifetimes(graph, schedule)) {
    const int32_t born = exec_of[life.born];
    const int32_t last = std::max(born, exec_of[life.dead] - 1);
    walk.lives[life.storage].push_back({.born = born,
                                        .last = last,
                                        .born_ns = start_ns[born],
                                        .last_ns = start_ns[last + 1]});
  }
  walk.made = std::move(lives);
  for (std::vector<StorageLife>& of : walk.lives) {
    std::sort(of.begin(), of.end(),
              [](const StorageLife& a, const StorageLife& b) {
                return a.born < b.born;
              });
  }
  return walk;
}

// Explains what the plan does with every storage.
std::vector<StorageExplanation> ExplainStorages(const Problem& problem,
                                                const Plan& plan,
                                                double price_ns_per_byte) {
  const StepGraph& graph = *problem.graph;
  const Versions& versions = problem.versions;
  const std::vector<uint8_t> at_base =
      AliveAt(graph, BaseSchedule(graph, problem.capabilities.free_policy),
              problem.base.peak_entry);
  const std::vector<uint8_t> at_plan =
      AliveAt(graph, plan.schedule, plan.evaluation.peak_entry);
  Walk walk = WalkSchedule(problem, plan.schedule);
  const Facts facts = {
      .price_ns_per_byte = price_ns_per_byte,
      .peak_bytes = problem.base.peak_bytes,
      .readers_of_second_life = std::move(walk.readers_of_second_life)};

  std::vector<StorageExplanation> result;
  for (StorageId s = 0; s < graph.storage_count(); ++s) {
    StorageExplanation explained;
    explained.storage = s;
    explained.decision = walk.decisions[s];
    explained.made_by = versions.maker[versions.first_value[s]];
    explained.last_read_by = explained.made_by;
    for (ValueId v = versions.first_value[s]; v <= versions.Last(s); ++v) {
      explained.recompute_ns += problem.rules.rerun_ns[versions.maker[v]];
      for (const OpId use : problem.Uses(v)) {
        if (use == problem.op_count) continue;
        explained.last_read_by = std::max(explained.last_read_by, use);
      }
    }
    explained.lives = std::move(walk.lives[s]);
    explained.copy_slack_ns = walk.copy_slack_ns[s];
    // What comes back from the host was not made again.
    explained.times_recomputed = std::max(0, walk.made[s] - 1);
    explained.alive_at_base_peak = at_base[s] != 0;
    explained.alive_at_peak = at_plan[s] != 0;
    explained.why = Why(problem, facts, explained);
    result.push_back(std::move(explained));
  }
  return result;
}

// ---- Counterfactuals -------------------------------------------------------

// Adds counterfactuals to the largest storages that are recomputed or alive at
// the peak.
void AddWhatIfs(const Problem& problem, const Plan& plan,
                std::vector<StorageExplanation>& storages) {
  std::vector<StorageId> order;
  for (const StorageExplanation& s : storages) {
    if (s.decision == Decision::kRecompute || s.alive_at_peak) {
      order.push_back(s.storage);
    }
  }
  std::stable_sort(order.begin(), order.end(), [&](StorageId a, StorageId b) {
    return problem.bytes[a] > problem.bytes[b];
  });
  const Counterfactual counterfactual(problem, plan.schedule, plan.evaluation);
  int most = kMostWhatIfs;
  int64_t left = kWhatIfExecs;
  for (const StorageId s : order) {
    left -= plan.evaluation.execs;
    if (most-- <= 0 || left < 0) return;
    storages[s].what_if = storages[s].decision == Decision::kRecompute
                              ? counterfactual.IfKept(s)
                              : counterfactual.IfRecomputed(s);
  }
}

// ---- Working set -----------------------------------------------------------

bool Contains(const std::string& text, const char* part) {
  return text.find(part) != std::string::npos;
}

// Returns whether another executor could recompute most bytes of the set.
bool MostlyExecutorForbids(const Problem& problem, const WorkingSet& set) {
  int64_t forbidden = 0, all = 0;
  for (const StorageId s : set.storages) {
    all += problem.bytes[s];
    if (OnlyExecutorForbids(problem, s)) forbidden += problem.bytes[s];
  }
  return forbidden > all / 2;
}

// Returns what to do about a working set that is too large.
std::string Advice(const Problem& problem, const WorkingSet& set) {
  if (set.op == kNoOp) return "";
  const std::string& name = problem.graph->ops[set.op].name;
  if (problem.static_bytes > set.bytes / 2) {
    return "most of it is static: shard or offload parameters and optimizer "
           "state, or use a smaller model";
  }
  if (set.workspace_bytes > set.bytes / 2) {
    return "most of it is workspace: choose an implementation of this op that "
           "needs less";
  }
  if (set.by_window && MostlyExecutorForbids(problem, set)) {
    return "most of these stay because this executor does not run random ops "
           "or collectives again: plan for one that does (seeded_ok, "
           "collective_ok), or use a smaller batch";
  }
  if (set.by_window) {
    return "these stay because they cannot be recomputed and are needed later: "
           "use a smaller batch";
  }
  for (const char* part : {"softmax", "nll_loss", "cross_entropy"}) {
    if (Contains(name, part)) {
      return "compute the loss in chunks of tokens, or use a smaller batch";
    }
  }
  return "split this op into chunks, or use a smaller batch";
}

// Returns the set that prevents a smaller budget.
WorkingSet ExplainWorkingSet(const Problem& problem, const Plan& plan) {
  WorkingSet set;
  const Infeasible largest = LargestWorkingSet(problem);
  const bool impossible =
      !plan.feasible && plan.infeasible.blocking_op != kNoOp;
  set.op = impossible ? plan.infeasible.blocking_op : largest.blocking_op;
  if (set.op == kNoOp) return set;
  const int64_t own = WorkingSets(problem)[set.op];
  set.by_window = impossible && plan.infeasible.smallest_budget_bytes > own;
  set.bytes = set.by_window ? plan.infeasible.smallest_budget_bytes : own;
  set.workspace_bytes = problem.workspace[set.op];
  set.storages = set.by_window && !plan.infeasible.storages.empty()
                     ? plan.infeasible.storages
                     : StoragesOf(problem, set.op);
  if (!set.by_window) {
    // The parts add up to its bytes: static memory, workspace and these
    // storages.
    for (const StorageId s : HeldBesides(problem, set.op)) {
      set.storages.push_back(s);
    }
    std::stable_sort(set.storages.begin(), set.storages.end(),
                     [&](StorageId a, StorageId b) {
                       return problem.bytes[a] > problem.bytes[b];
                     });
  }
  set.advice = Advice(problem, set);
  return set;
}

}  // namespace

Explanation Explain(const StepGraph& graph, const Plan& plan,
                    int64_t budget_bytes, const Capabilities& capabilities) {
  const Problem problem = MakeProblem(graph, capabilities);
  Explanation result;
  result.working_set = ExplainWorkingSet(problem, plan);
  if (!plan.feasible) {
    // Explain the step without a plan.
    Plan unplanned;
    unplanned.schedule = BaseSchedule(graph, problem.capabilities.free_policy);
    unplanned.evaluation = problem.base;
    result.storages = ExplainStorages(problem, unplanned, 0);
    for (StorageExplanation& storage : result.storages) {
      storage.alive_at_peak = false;
      storage.why.clear();
    }
    return result;
  }
  result.price_ns_per_byte = Price(problem, budget_bytes);
  result.storages = ExplainStorages(problem, plan, result.price_ns_per_byte);
  // The opposite decision alone would leave copies where they are.
  if (!UsesHost(plan.schedule)) {
    AddWhatIfs(problem, plan, result.storages);
  }
  result.groups = GroupStorages(problem, result.storages);
  return result;
}

}  // namespace reprise::planner
