// SPDX-License-Identifier: Apache-2.0
#include "planner/construct/greedy.h"

#include <algorithm>
#include <limits>
#include <set>
#include <vector>

#include "planner/construct/burst.h"
#include "planner/construct/present.h"

namespace reprise::planner {
namespace {

// Ops visited to estimate the cost of one eviction.
constexpr size_t kMostCosted = 40;
// Nesting depth of recomputation, which uses the call stack.
constexpr int kMostDepth = 300;
// A burst gives up at this many execs per op of the graph.
constexpr size_t kMostBurst = 20;

class Greedy {
 public:
  Greedy(const Problem& problem, const GreedyOptions& options, Effort& effort)
      : problem_(problem),
        options_(options),
        effort_(effort),
        present_(problem),
        last_tick_(options.most_ticks > 0
                       ? effort.ticks() + options.most_ticks
                       : std::numeric_limits<int64_t>::max()),
        runs_(problem.op_count, 0),
        search_(problem, runs_, options.budget_bytes, effort, last_tick_) {}

  // Returns the execs of the schedule, or nothing if the greedy gets stuck.
  std::vector<OpId> Run() {
    most_execs_ = static_cast<size_t>(problem_.op_count) *
                  static_cast<size_t>(options_.most_execs_per_op);
    for (at_ = 0; at_ <= problem_.op_count; ++at_) {
      const ValueSet wanted = Sorted(Need(at_));
      if (!std::all_of(wanted.begin(), wanted.end(),
                       [&](ValueId v) { return present_.Has(v); })) {
        if (problem_.rules.may_trigger[at_] == 0) return {};
        if (!Recreate(wanted)) return {};
      }
      if (at_ == problem_.op_count) break;
      if (!MakeRoom(at_, wanted)) return {};
      Exec(at_);
      if (execs_.size() > most_execs_ || Over()) return {};
    }
    return execs_;
  }

 private:
  bool Over() const { return effort_.Over() || effort_.ticks() > last_tick_; }
  // Returns what an op needs; op_count stands for the end of the step.
  std::span<const ValueId> Need(OpId op) const {
    return op == problem_.op_count ? std::span<const ValueId>(problem_.end_need)
                                   : problem_.versions.Need(op);
  }
  static ValueSet Sorted(std::span<const ValueId> values) {
    ValueSet set(values.begin(), values.end());
    std::sort(set.begin(), set.end());
    return set;
  }

  // Recomputes what is missing of a set, trying the cheapest way first.
  bool Recreate(const ValueSet& wanted) {
    burst_execs_ = std::min(
        most_execs_,
        execs_.size() + kMostBurst * static_cast<size_t>(problem_.op_count));
    const auto attempt = [&](auto&& make) {
      const Present present = present_;
      const size_t execs = execs_.size();
      search_.StandAt(present_, at_);
      if (make()) return true;
      // Undo the failed attempt.
      present_ = present;
      for (; execs_.size() > execs; execs_.pop_back()) --runs_[execs_.back()];
      return false;
    };
    return attempt([&] {
             std::set<ValueId> keep;
             return Make(wanted, keep, 0);
           }) ||
           attempt([&] {
             return Run(search_.Cheapest(wanted, options_.most_states));
           }) ||
           attempt([&] {
             return Run(search_.Smallest(wanted, /*keep_present=*/true));
           }) ||
           attempt([&] {
             return Run(search_.Smallest(wanted, /*keep_present=*/false));
           });
  }

  void Exec(OpId op) {
    present_.Run(op);
    execs_.push_back(op);
    ++runs_[op];
    effort_.Spend(10);
  }

  // Evicts values until `op` fits, except those of `keep`.
  bool MakeRoom(OpId op, const ValueSet& keep) {
    const Versions& versions = problem_.versions;
    int64_t extra = problem_.workspace[op];
    for (const StorageId s : problem_.Writes(op)) {
      const ValueId present = present_.At(s);
      if (present == kNoValue) {
        extra += problem_.bytes[s];
      } else if (present != versions.first_value[s]) {
        // An older version is recomputed, so the newer one must go.
        if (Holds(keep, present) || !present_.MayDrop(s, at_)) return false;
        present_.Drop(s);
        extra += problem_.bytes[s];
      } else if (problem_.capabilities.duplicate_outputs) {
        extra += problem_.bytes[s];
      }
    }
    while (present_.bytes() + extra > options_.budget_bytes) {
      StorageId worst = -1;
      double least = 0;
      for (const StorageId s : present_.storages()) {
        const ValueId v = present_.At(s);
        if (problem_.bytes[s] == 0 || Holds(keep, v) ||
            !present_.MayDrop(s, at_)) {
          continue;
        }
        const double worth = Worth(v);
        if (worst < 0 || worth < least || (worth == least && s < worst)) {
          worst = s;
          least = worth;
        }
      }
      effort_.Spend(static_cast<int64_t>(present_.storages().size()));
      if (worst < 0) return false;
      present_.Drop(worst);
    }
    return true;
  }

  double Worth(ValueId v) {
    const int32_t gap = present_.GapOf(v, at_);
    const double bytes = static_cast<double>(problem_.BytesOf(v));
    double cost = 1;
    if (options_.cost_power > 0) {
      cost += static_cast<double>(RecomputeTime(v));
    }
    double distance = static_cast<double>(problem_.flag_to[gap] - at_ + 1);
    if (problem_.IsTail(gap)) distance = 1e6 * problem_.op_count;
    if (options_.distance_power == 0) distance = problem_.IsTail(gap) ? 1e6 : 1;
    if (options_.distance_power == 2) distance *= distance;
    return cost / (bytes * distance);
  }

  // Returns the time to recompute a present value if it were gone: its maker
  // and the makers of its absent ancestors, up to a limit.
  int64_t RecomputeTime(ValueId v) {
    const Versions& versions = problem_.versions;
    std::vector<OpId>& ops = makers_;
    ops.assign(1, versions.maker[v]);
    int64_t time = 0;
    for (size_t i = 0; i < ops.size() && i < kMostCosted; ++i) {
      time += problem_.rules.rerun_ns[ops[i]];
      for (const ValueId u : versions.Need(ops[i])) {
        const OpId m = versions.maker[u];
        if (!present_.Has(u) &&
            std::find(ops.begin(), ops.end(), m) == ops.end()) {
          ops.push_back(m);
        }
      }
    }
    effort_.Spend(static_cast<int64_t>(ops.size()));
    return time;
  }

  static bool Holds(const ValueSet& set, ValueId v) {
    return std::binary_search(set.begin(), set.end(), v);
  }

  // Runs a burst. Returns false if there is none, or it does not fit after all.
  bool Run(const std::optional<Burst>& burst) {
    if (!burst) return false;
    for (size_t i = 0; i < burst->ops.size(); ++i) {
      for (const ValueId u : problem_.versions.Need(burst->ops[i])) {
        if (!present_.Has(u)) return false;
      }
      if (!MakeRoom(burst->ops[i], burst->survives[i])) return false;
      Exec(burst->ops[i]);
    }
    return true;
  }

  // Recomputes what is missing of a set at any cost: all at once if that fits,
  // otherwise one value after the other, those that need the most memory first,
  // and keeps what is made. Values in `keep` may not be evicted.
  bool Make(const ValueSet& wanted, std::set<ValueId>& keep, int depth) {
    if (depth > kMostDepth || Over() || execs_.size() > burst_execs_) {
      return false;
    }
    const std::optional<Burst> at_once = search_.AllAtOnce(wanted, keep);
    if (!at_once) return false;
    if (at_once->peak_bytes <= options_.budget_bytes) return Run(at_once);

    std::vector<std::pair<int64_t, ValueId>> order;
    for (const ValueId v : wanted) {
      if (keep.count(v) != 0) continue;
      // If v could not be made, `wanted` could not have been made either.
      const std::optional<Burst> alone = search_.AllAtOnce({v}, {});
      order.emplace_back(problem_.BytesOf(v) - alone->peak_bytes, v);
    }
    std::sort(order.begin(), order.end());
    std::vector<ValueId> kept;
    bool done = true;
    for (const auto& [hunger, v] : order) {
      if (!present_.Has(v)) {
        const OpId m = problem_.versions.maker[v];
        const ValueSet inputs = Sorted(problem_.versions.Need(m));
        ValueSet safe(keep.begin(), keep.end());
        safe.insert(safe.end(), inputs.begin(), inputs.end());
        std::sort(safe.begin(), safe.end());
        if (problem_.rules.may_remake[v] == 0 ||
            !Make(inputs, keep, depth + 1) || !MakeRoom(m, safe)) {
          done = false;
          break;
        }
        Exec(m);
      }
      keep.insert(v);
      kept.push_back(v);
    }
    for (const ValueId v : kept) keep.erase(v);
    return done;
  }

  const Problem& problem_;
  const GreedyOptions& options_;
  Effort& effort_;
  Present present_;
  const int64_t last_tick_;
  std::vector<int32_t> runs_;
  std::vector<OpId> execs_;
  std::vector<OpId> makers_;
  BurstSearch search_;
  OpId at_ = 0;
  size_t most_execs_ = 0;
  size_t burst_execs_ = 0;  // limit of the current burst
};

}  // namespace

std::vector<OpId> NextUseGreedy(const Problem& problem,
                                const GreedyOptions& options, Effort& effort) {
  return Greedy(problem, options, effort).Run();
}

}  // namespace reprise::planner
