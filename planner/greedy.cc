// SPDX-License-Identifier: Apache-2.0
#include "planner/greedy.h"

#include <algorithm>
#include <limits>
#include <map>
#include <queue>
#include <set>
#include <vector>

namespace reprise::planner {
namespace {

using Set = std::vector<ValueId>;  // sorted

// Ops looked at to price one eviction.
constexpr size_t kMostCosted = 40;
// Nested re-creations; the call stack holds them.
constexpr int kMostDepth = 300;
// Execs per op of the graph that one burst may take before it is given up.
constexpr size_t kMostBurst = 20;
// Sets looked at per step of a beam, and steps per op of the graph.
constexpr size_t kBeamWidth = 40;
constexpr size_t kBeamSteps = 20;

bool Contains(const Set& set, ValueId v) {
  return std::binary_search(set.begin(), set.end(), v);
}

// What the greedy knows of memory: which value of each storage is present.
class Memory {
 public:
  explicit Memory(const Problem& problem)
      : problem_(&problem),
        present_(problem.bytes.size(), kNoValue),
        first_life_(problem.bytes.size(), 1),
        next_use_(problem.versions.value_count(), 0),
        live_(problem.static_bytes) {}

  bool Has(ValueId v) const {
    return present_[problem_->versions.storage[v]] == v;
  }
  ValueId At(StorageId s) const { return present_[s]; }
  int64_t live() const { return live_; }

  void Drop(StorageId s) {
    if (present_[s] == kNoValue) return;
    present_[s] = kNoValue;
    first_life_[s] = 0;
    live_ -= problem_->bytes[s];
    const auto at = std::find(alive_.begin(), alive_.end(), s);
    *at = alive_.back();
    alive_.pop_back();
  }
  void Run(OpId op) {
    for (const ValueId v : problem_->versions.Make(op)) {
      const StorageId s = problem_->versions.storage[v];
      if (present_[s] == kNoValue) {
        live_ += problem_->bytes[s];
        alive_.push_back(s);
      }
      present_[s] = v;
    }
  }

  // The flag of the gap that a present value is in, before base op `at`.
  int32_t GapOf(ValueId v, OpId at) {
    const auto uses = problem_->Uses(v);
    int32_t& next = next_use_[v];
    while (next < static_cast<int32_t>(uses.size()) && uses[next] < at) ++next;
    return problem_->flag_begin[v] + next;
  }
  bool MayDrop(StorageId s, OpId at) {
    const OpId held = problem_->rules.held_until[s];
    if (first_life_[s] != 0 && held != kNoOp && held >= at) return false;
    const int32_t gap = GapOf(present_[s], at);
    return problem_->flag_fixed[gap] == 0 || problem_->IsTail(gap);
  }
  const std::vector<StorageId>& alive() const { return alive_; }

 private:
  const Problem* problem_;
  std::vector<ValueId> present_;
  std::vector<uint8_t> first_life_;
  std::vector<int32_t> next_use_;  // by value: uses before the current op
  std::vector<StorageId> alive_;
  int64_t live_;
};

class Greedy {
 public:
  Greedy(const Problem& problem, const GreedyOptions& options, Effort& effort)
      : problem_(problem),
        options_(options),
        effort_(effort),
        memory_(problem),
        last_tick_(options.most_ticks > 0
                       ? effort.ticks() + options.most_ticks
                       : std::numeric_limits<int64_t>::max()),
        runs_(problem.op_count, 0) {}

  std::vector<OpId> Run() {
    most_execs_ = static_cast<size_t>(problem_.op_count) *
                  static_cast<size_t>(options_.most_execs_per_op);
    for (at_ = 0; at_ <= problem_.op_count; ++at_) {
      Set wanted(Need(at_).begin(), Need(at_).end());
      std::sort(wanted.begin(), wanted.end());
      if (!std::all_of(wanted.begin(), wanted.end(),
                       [&](ValueId v) { return memory_.Has(v); })) {
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
  std::span<const ValueId> Need(OpId op) const {
    return op == problem_.op_count ? std::span<const ValueId>(problem_.end_need)
                                   : problem_.versions.Need(op);
  }

  // All three ways to make what is missing of a set, the cheapest first.
  bool Recreate(const Set& wanted) {
    retained_bytes_ = RetainedBytes(retained_);
    const Memory memory = memory_;
    const size_t execs = execs_.size();
    std::set<ValueId> keep;
    burst_execs_ =
        std::min(most_execs_,
                 execs + kMostBurst * static_cast<size_t>(problem_.op_count));
    if (Make(wanted, keep, 0)) return true;
    // What the failed attempt did was for nothing.
    memory_ = memory;
    for (; execs_.size() > execs; execs_.pop_back()) --runs_[execs_.back()];
    return Burst(wanted) || Beam(wanted, /*keep_present=*/true) ||
           Beam(wanted, /*keep_present=*/false);
  }

  void Exec(OpId op) {
    memory_.Run(op);
    execs_.push_back(op);
    ++runs_[op];
    effort_.Spend(10);
  }

  // Evicts until `op` fits. Keeps the values of `keep`.
  bool MakeRoom(OpId op, const Set& keep) {
    const Versions& versions = problem_.versions;
    int64_t extra = problem_.workspace[op];
    for (const StorageId s : problem_.Writes(op)) {
      const ValueId present = memory_.At(s);
      if (present == kNoValue) {
        extra += problem_.bytes[s];
      } else if (present != versions.first_value[s]) {
        // An older version is made again: the newer one goes.
        if (Contains(keep, present) || !memory_.MayDrop(s, at_)) return false;
        memory_.Drop(s);
        extra += problem_.bytes[s];
      } else if (problem_.capabilities.duplicate_outputs) {
        extra += problem_.bytes[s];
      }
    }
    while (memory_.live() + extra > options_.budget_bytes) {
      StorageId worst = -1;
      double least = 0;
      for (const StorageId s : memory_.alive()) {
        const ValueId v = memory_.At(s);
        if (problem_.bytes[s] == 0 || Contains(keep, v) ||
            !memory_.MayDrop(s, at_)) {
          continue;
        }
        const double worth = Worth(v);
        if (worst < 0 || worth < least || (worth == least && s < worst)) {
          worst = s;
          least = worth;
        }
      }
      effort_.Spend(static_cast<int64_t>(memory_.alive().size()));
      if (worst < 0) return false;
      memory_.Drop(worst);
    }
    return true;
  }

  double Worth(ValueId v) {
    const int32_t gap = memory_.GapOf(v, at_);
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

  // Time of making a present value again were it gone: its maker and the makers
  // of what is absent above it, up to a limit.
  int64_t RecomputeTime(ValueId v) {
    const Versions& versions = problem_.versions;
    std::vector<OpId>& ops = makers_;
    ops.assign(1, versions.maker[v]);
    int64_t time = 0;
    for (size_t i = 0; i < ops.size() && i < kMostCosted; ++i) {
      time += problem_.rules.rerun_ns[ops[i]];
      for (const ValueId u : versions.Need(ops[i])) {
        const OpId m = versions.maker[u];
        if (!memory_.Has(u) &&
            std::find(ops.begin(), ops.end(), m) == ops.end()) {
          ops.push_back(m);
        }
      }
    }
    effort_.Spend(static_cast<int64_t>(ops.size()));
    return time;
  }

  // Bytes that no burst can free: what is held or may not be made again.
  int64_t RetainedBytes(std::vector<uint8_t>& retained) {
    int64_t bytes = problem_.static_bytes;
    retained.assign(problem_.bytes.size(), 0);
    for (const StorageId s : memory_.alive()) {
      if (memory_.MayDrop(s, at_)) continue;
      retained[s] = 1;
      bytes += problem_.bytes[s];
    }
    return bytes;
  }

  struct Node {
    Set set;
    int32_t parent;
    OpId undone;  // exec between this set and its parent's
    int64_t time_ns;
    bool closed;
  };
  struct Arrival {
    int64_t estimate;
    OpId undone;
    int32_t node;
    bool operator<(const Arrival& other) const {
      if (estimate != other.estimate) return estimate > other.estimate;
      if (undone != other.undone) return undone < other.undone;
      return node > other.node;
    }
  };

  // Time of the makers of what is missing: each has to run at least once.
  int64_t MissingTime(const Set& set) {
    makers_.clear();
    for (const ValueId v : set) {
      if (!memory_.Has(v)) makers_.push_back(problem_.versions.maker[v]);
    }
    std::sort(makers_.begin(), makers_.end());
    makers_.erase(std::unique(makers_.begin(), makers_.end()), makers_.end());
    int64_t time = 0;
    for (const OpId m : makers_) time += problem_.rules.rerun_ns[m] + 1;
    return time;
  }

  // Bytes while m runs and `before` and its outputs are present.
  int64_t BytesWhile(OpId m, const Set& before, const Set& after) {
    int64_t bytes = retained_bytes_ + problem_.workspace[m];
    scratch_.clear();
    for (const Set* set : {&before, &after}) {
      for (const ValueId v : *set) {
        scratch_.push_back(problem_.versions.storage[v]);
      }
    }
    for (const StorageId s : problem_.Writes(m)) scratch_.push_back(s);
    std::sort(scratch_.begin(), scratch_.end());
    scratch_.erase(std::unique(scratch_.begin(), scratch_.end()),
                   scratch_.end());
    for (const StorageId s : scratch_) {
      if (retained_[s] == 0) bytes += problem_.bytes[s];
    }
    return bytes;
  }

  // The set before m runs, or false where versions contradict each other.
  bool Undo(OpId m, const Set& after, Set& before) {
    const Versions& versions = problem_.versions;
    const auto make = versions.Make(m);
    before.clear();
    for (const ValueId v : after) {
      if (std::find(make.begin(), make.end(), v) == make.end()) {
        before.push_back(v);
      }
    }
    for (const ValueId v : before) {
      for (const ValueId w : make) {
        if (versions.storage[v] == versions.storage[w]) return false;
      }
    }
    const size_t kept = before.size();
    for (const ValueId u : versions.Need(m)) {
      bool known = false;
      for (size_t i = 0; i < kept; ++i) {
        if (before[i] == u) known = true;
        if (before[i] != u &&
            versions.storage[before[i]] == versions.storage[u])
          return false;
      }
      if (!known) before.push_back(u);
    }
    std::sort(before.begin(), before.end());
    return true;
  }

  bool MayUndo(OpId m, const Set& after) {
    if (problem_.rules.may_rerun[m] == 0) return false;
    const int most = problem_.capabilities.max_runs;
    if (most > 0 && runs_[m] >= most) return false;
    for (const ValueId v : problem_.versions.Make(m)) {
      if (Contains(after, v) && problem_.rules.may_remake[v] == 0) return false;
      // A retained storage at another version cannot make way.
      const StorageId s = problem_.versions.storage[v];
      if (retained_[s] != 0 && memory_.At(s) != v) return false;
    }
    return true;
  }

  // The ops that re-create what is missing, each once, in base order.
  struct Plain {
    bool possible = false;
    int64_t peak_bytes = 0;  // of what they need and `keep`, nothing else
    std::vector<OpId> ops;
    std::vector<Set> needed;  // by op: what has to survive it
  };
  Plain PlainBurst(const Set& wanted, const std::set<ValueId>& keep) {
    const Versions& versions = problem_.versions;
    Plain plain;
    std::vector<ValueId> open(wanted);
    std::set<OpId> known;
    while (!open.empty()) {
      const ValueId v = open.back();
      open.pop_back();
      if (memory_.Has(v)) continue;
      const OpId m = versions.maker[v];
      if (problem_.rules.may_remake[v] == 0) return plain;
      if (!known.insert(m).second) continue;
      const int most = problem_.capabilities.max_runs;
      if (most > 0 && runs_[m] >= most) return plain;
      for (const ValueId u : versions.Need(m)) open.push_back(u);
    }
    plain.possible = true;
    plain.ops.assign(known.begin(), known.end());
    plain.needed.resize(plain.ops.size());
    // What later ops of the burst need, from the back.
    std::set<ValueId> needed(wanted.begin(), wanted.end());
    needed.insert(keep.begin(), keep.end());
    for (size_t i = plain.ops.size(); i-- > 0;) {
      const OpId m = plain.ops[i];
      const Set after(needed.begin(), needed.end());
      for (const ValueId v : versions.Make(m)) needed.erase(v);
      for (const ValueId u : versions.Need(m)) needed.insert(u);
      plain.needed[i].assign(needed.begin(), needed.end());
      effort_.Spend(static_cast<int64_t>(20 * (1 + needed.size())));
      plain.peak_bytes =
          std::max(plain.peak_bytes, BytesWhile(m, plain.needed[i], after));
    }
    effort_.Spend(static_cast<int64_t>(40 * plain.ops.size()));
    return plain;
  }

  bool Run(const Plain& plain) {
    for (size_t i = 0; i < plain.ops.size(); ++i) {
      for (const ValueId u : problem_.versions.Need(plain.ops[i])) {
        if (!memory_.Has(u)) return false;
      }
      if (!MakeRoom(plain.ops[i], plain.needed[i])) return false;
      Exec(plain.ops[i]);
    }
    return true;
  }

  // Re-creates what is missing of a set, whatever it takes: all at once where
  // that fits, else one value after the other, the hungriest first; those made
  // are kept. `keep` may not be evicted.
  bool Make(const Set& wanted, std::set<ValueId>& keep, int depth) {
    if (depth > kMostDepth || Over() || execs_.size() > burst_execs_) {
      return false;
    }
    const Plain plain = PlainBurst(wanted, keep);
    if (!plain.possible) return false;
    if (plain.peak_bytes <= options_.budget_bytes) return Run(plain);

    std::vector<std::pair<int64_t, ValueId>> order;
    for (const ValueId v : wanted) {
      if (keep.count(v) != 0) continue;
      const int64_t own = problem_.BytesOf(v);
      order.emplace_back(own - PlainBurst({v}, {}).peak_bytes, v);
    }
    std::sort(order.begin(), order.end());
    std::vector<ValueId> kept;
    bool done = true;
    for (const auto& [hunger, v] : order) {
      if (!memory_.Has(v)) {
        const OpId m = problem_.versions.maker[v];
        Set inputs(problem_.versions.Need(m).begin(),
                   problem_.versions.Need(m).end());
        std::sort(inputs.begin(), inputs.end());
        Set safe(keep.begin(), keep.end());
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

  bool Burst(const Set& wanted) {
    retained_bytes_ = RetainedBytes(retained_);
    std::vector<Node> nodes;
    std::map<Set, int32_t> seen;
    std::priority_queue<Arrival> queue;
    nodes.push_back({wanted, -1, kNoOp, 0, false});
    seen[wanted] = 0;
    queue.push({MissingTime(wanted), kNoOp, 0});
    int states = 0;
    Set before;
    while (!queue.empty()) {
      const int32_t index = queue.top().node;
      queue.pop();
      if (nodes[index].closed) continue;
      nodes[index].closed = true;
      const Set set = nodes[index].set;
      effort_.Spend(40);
      if (std::all_of(set.begin(), set.end(),
                      [&](ValueId v) { return memory_.Has(v); })) {
        return Execute(nodes, index);
      }
      if (++states > options_.most_states || Over()) return false;
      std::vector<OpId> undo;
      for (const ValueId v : set) undo.push_back(problem_.versions.maker[v]);
      std::sort(undo.begin(), undo.end());
      undo.erase(std::unique(undo.begin(), undo.end()), undo.end());
      for (const OpId m : undo) {
        if (!MayUndo(m, set) || !Undo(m, set, before) ||
            BytesWhile(m, before, set) > options_.budget_bytes) {
          continue;
        }
        effort_.Spend(static_cast<int64_t>(40 + before.size()));
        const int64_t time =
            nodes[index].time_ns + problem_.rules.rerun_ns[m] + 1;
        const auto [place, fresh] =
            seen.try_emplace(before, static_cast<int32_t>(nodes.size()));
        if (!fresh) {
          Node& known = nodes[place->second];
          if (known.closed || known.time_ns <= time) continue;
          known = {before, index, m, time, false};
        } else {
          nodes.push_back({before, index, m, time, false});
        }
        queue.push({time + 2 * MissingTime(before), m, place->second});
      }
    }
    return false;
  }

  void FindAncestors() {
    const Versions& versions = problem_.versions;
    const size_t words = static_cast<size_t>(problem_.op_count) / 64 + 1;
    ancestors_.assign(problem_.op_count, std::vector<uint64_t>(words, 0));
    for (OpId o = 0; o < problem_.op_count; ++o) {
      for (const ValueId u : versions.Need(o)) {
        const OpId m = versions.maker[u];
        for (size_t w = 0; w < words; ++w) ancestors_[o][w] |= ancestors_[m][w];
        ancestors_[o][m / 64] |= uint64_t{1} << (m % 64);
      }
    }
    effort_.Spend(static_cast<int64_t>(words) * problem_.op_count);
  }

  // The search of Burst with memory in the place of time: of all sets one exec
  // further back, the smallest few are followed. An exec that something else
  // in the set descends from will be repeated and counts by its bytes once
  // more. `keep_present`: what is present now is not made again.
  bool Beam(const Set& wanted, bool keep_present) {
    if (problem_.op_count > kMostBeamOps) return false;
    if (ancestors_.empty()) FindAncestors();
    struct Step {
      int64_t score;
      int32_t parent;
      OpId undone;
      Set set;
    };
    std::vector<Node> nodes;
    std::set<Set> seen;
    nodes.push_back({wanted, -1, kNoOp, 0, false});
    std::vector<int32_t> beam = {0};
    std::vector<Step> steps;
    std::vector<uint64_t> above;
    Set before;
    const size_t most_steps =
        kBeamSteps * static_cast<size_t>(problem_.op_count);
    for (size_t step = 0; step < most_steps && !beam.empty(); ++step) {
      if (Over()) return false;
      steps.clear();
      for (const int32_t index : beam) {
        const Set& set = nodes[index].set;
        std::vector<OpId> undo;
        above.assign(problem_.op_count / 64 + 1, 0);
        for (const ValueId v : set) {
          const OpId m = problem_.versions.maker[v];
          for (size_t w = 0; w < above.size(); ++w) {
            above[w] |= ancestors_[m][w];
          }
          if (!keep_present || !memory_.Has(v)) undo.push_back(m);
        }
        std::sort(undo.begin(), undo.end());
        undo.erase(std::unique(undo.begin(), undo.end()), undo.end());
        for (const OpId m : undo) {
          if (!MayUndo(m, set) || !Undo(m, set, before) ||
              BytesWhile(m, before, set) > options_.budget_bytes) {
            continue;
          }
          effort_.Spend(static_cast<int64_t>(10 + before.size()));
          if (!seen.insert(before).second) continue;
          int64_t score = 0;
          for (const ValueId v : before) score += problem_.BytesOf(v);
          if ((above[m / 64] >> (m % 64) & 1) != 0) {
            for (const ValueId v : problem_.versions.Make(m)) {
              score += problem_.BytesOf(v);
            }
          }
          steps.push_back({score, index, m, before});
        }
      }
      std::stable_sort(
          steps.begin(), steps.end(),
          [](const Step& a, const Step& b) { return a.score < b.score; });
      if (steps.size() > kBeamWidth) steps.resize(kBeamWidth);
      beam.clear();
      for (Step& s : steps) {
        const int32_t index = static_cast<int32_t>(nodes.size());
        nodes.push_back({std::move(s.set), s.parent, s.undone, 0, false});
        const Set& set = nodes.back().set;
        if (std::all_of(set.begin(), set.end(),
                        [&](ValueId v) { return memory_.Has(v); })) {
          return Execute(nodes, index);
        }
        beam.push_back(index);
      }
    }
    return false;
  }

  // Runs the burst that leads from what is present to the wanted set.
  bool Execute(const std::vector<Node>& nodes, int32_t index) {
    while (nodes[index].parent >= 0) {
      // What has to survive the exec: its inputs and all that is wanted later.
      const Set& before = nodes[index].set;
      const OpId m = nodes[index].undone;
      if (!MakeRoom(m, before)) return false;
      Exec(m);
      index = nodes[index].parent;
    }
    return true;
  }

  const Problem& problem_;
  const GreedyOptions& options_;
  Effort& effort_;
  Memory memory_;
  const int64_t last_tick_;
  std::vector<int32_t> runs_;
  std::vector<OpId> execs_;
  std::vector<uint8_t> retained_;
  int64_t retained_bytes_ = 0;
  std::vector<OpId> makers_;
  std::vector<StorageId> scratch_;
  OpId at_ = 0;
  size_t most_execs_ = 0;
  size_t burst_execs_ = 0;                        // limit of the current burst
  std::vector<std::vector<uint64_t>> ancestors_;  // by op, one bit per op
};

}  // namespace

std::vector<OpId> NextUseGreedy(const Problem& problem,
                                const GreedyOptions& options, Effort& effort) {
  return Greedy(problem, options, effort).Run();
}

}  // namespace reprise::planner
