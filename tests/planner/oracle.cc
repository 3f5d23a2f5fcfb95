// SPDX-License-Identifier: Apache-2.0
#include "tests/planner/oracle.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <queue>
#include <unordered_map>

namespace reprise::planner {
namespace {

constexpr int kMostStorages = 12;
constexpr int kMostOps = 12;

struct State {
  uint8_t next = 0;                              // ops run for the first time
  std::array<uint8_t, kMostStorages> version{};  // 0: absent; at most 15
  std::array<uint8_t, kMostStorages> later{};    // not in its first life; only
                                                 // where that matters
  std::array<uint8_t, kMostOps> runs{};          // only if runs are limited
  std::array<uint8_t, kMostOps> stored{};  // 1: its generator state is stored
};

// 4 + 12 * (4 + 1) + 12 * (3 + 1) = 112 bits.
struct Key {
  uint64_t high = 0, low = 0;
  friend bool operator==(const Key&, const Key&) = default;
};
struct KeyHash {
  size_t operator()(const Key& key) const {
    return (key.high * 0x9e3779b97f4a7c15 ^ key.low) * 0xff51afd7ed558ccd >> 8;
  }
};

Key KeyOf(const State& state) {
  Key key{.high = state.next};
  for (int s = 0; s < kMostStorages; ++s) {
    key.high = key.high << 5 | state.version[s] << 1 | state.later[s];
  }
  for (int o = 0; o < kMostOps; ++o) {
    key.low =
        key.low << 4 | std::min<int>(7, state.runs[o]) << 1 | state.stored[o];
  }
  return key;
}

class Oracle {
 public:
  Oracle(const StepGraph& graph, const Capabilities& capabilities,
         int64_t budget)
      : graph_(graph), caps_(capabilities), budget_(budget) {
    std::array<uint8_t, kMostStorages> version{};
    for (const Op& op : graph.ops) {
      std::vector<int> need;
      for (const StorageId s : op.reads) need.push_back(version[s]);
      need_.push_back(need);
      std::vector<int> made;
      for (const StorageId s : op.mutates) made.push_back(++version[s]);
      mutated_.push_back(made);
      for (const StorageId s : op.writes) version[s] = 1;
    }
    last_ = version;
    for (OpId o = graph.op_count(); o-- > 0;) {
      rest_[o] = rest_[o + 1] + graph.ops[o].time_ns;
    }
  }

  std::optional<OracleAnswer> Solve() {
    queue_.push({rest_[0], 0});
    states_.push_back({});
    from_.push_back({-1, {}});
    best_[KeyOf(states_[0])] = 0;
    while (!queue_.empty()) {
      const auto [all, index] = queue_.top();
      queue_.pop();
      const State state = states_[index];
      const int64_t time = all - rest_[state.next];
      if (best_[KeyOf(state)] < time) continue;
      if (IsEnd(state)) return Answer(time, index);
      for (StorageId s = 0; s < graph_.storage_count(); ++s) {
        if (state.version[s] != 0 && MayFree(state, s)) {
          State next = state;
          next.version[s] = 0;
          next.later[s] = LivesMatter(s);
          Reach(next, time, index, Free(s));
        }
      }
      for (OpId o = 0; o < graph_.op_count() && o <= state.next; ++o) {
        TryExec(state, o, time, index);
        if (state.stored[o] != 0) {
          State next = state;
          next.stored[o] = 0;
          Reach(next, time, index, std::nullopt);
        }
      }
    }
    return std::nullopt;
  }

 private:
  bool IsEnd(const State& state) const {
    if (state.next < graph_.op_count()) return false;
    return std::all_of(
        graph_.required.begin(), graph_.required.end(), [&](StorageId s) {
          const bool kept = !graph_.storages[s].pinned || state.later[s] == 0;
          return kept && state.version[s] == last_[s];
        });
  }

  // Returns whether freeing or reading the storage depends on its being in its
  // first life.
  bool LivesMatter(StorageId s) const {
    return graph_.storages[s].pinned ||
           (caps_.free_policy == FreePolicy::kProgram &&
            graph_.storages[s].release_op != kNoOp);
  }

  bool MayFree(const State& state, StorageId s) const {
    const OpId release = graph_.storages[s].release_op;
    return caps_.free_policy != FreePolicy::kProgram || state.later[s] != 0 ||
           release == kNoOp || release < state.next;
  }

  bool MayRunAgain(const State& state, OpId o) const {
    const Op& op = graph_.ops[o];
    if (op.kind == OpKind::kOnce) return false;
    if (op.kind == OpKind::kCollective && !caps_.collective_ok) return false;
    if (op.kind == OpKind::kSeeded &&
        (!caps_.seeded_ok || (op.state_bytes > 0 && state.stored[o] == 0))) {
      return false;
    }
    if (caps_.max_runs == 1) return false;
    if (caps_.max_runs > 1 && state.runs[o] >= caps_.max_runs) return false;
    if (state.next < graph_.op_count() &&
        !graph_.ops[state.next].replay_point) {
      return false;
    }
    bool inside = op.replay_windows.empty();
    for (const ReplayWindow& window : op.replay_windows) {
      inside |= window.first <= state.next && state.next <= window.last;
    }
    if (!inside) return false;
    if (!caps_.recompute_in_backward_only) return true;
    return op.phase == Phase::kForward && state.next < graph_.op_count() &&
           graph_.ops[state.next].phase == Phase::kBackward;
  }

  void TryExec(const State& state, OpId o, int64_t time, int index) {
    const Op& op = graph_.ops[o];
    const bool again = o < state.next;
    if (again && !MayRunAgain(state, o)) return;
    for (size_t i = 0; i < op.reads.size(); ++i) {
      const StorageId s = op.reads[i];
      if (state.version[s] != need_[o][i]) return;
      if (graph_.storages[s].pinned && state.later[s] != 0) return;
    }
    State next = state;
    int64_t bytes = graph_.static_bytes + op.workspace_bytes;
    for (const StorageId s : op.writes) {
      if (state.version[s] > 1) return;
      if (state.version[s] == 1 && caps_.duplicate_outputs) {
        bytes += graph_.storages[s].bytes;
      }
      next.version[s] = 1;
    }
    for (size_t i = 0; i < op.mutates.size(); ++i) {
      next.version[op.mutates[i]] = mutated_[o][i];
    }
    if (caps_.max_runs > 1) ++next.runs[o];
    if (!again) ++next.next;
    for (StorageId s = 0; s < graph_.storage_count(); ++s) {
      if (next.version[s] != 0) bytes += graph_.storages[s].bytes;
    }
    for (OpId p = 0; p < graph_.op_count(); ++p) {
      if (next.stored[p] != 0) bytes += graph_.ops[p].state_bytes;
    }
    const int64_t after =
        time +
        (again ? RerunNs(op) + caps_.ns_per_op * op.launches : op.time_ns);
    if (bytes <= budget_) Reach(next, after, index, Exec(o));
    const bool may_store = !again && op.kind == OpKind::kSeeded &&
                           caps_.seeded_ok && op.state_bytes > 0;
    if (may_store && bytes + op.state_bytes <= budget_) {
      next.stored[o] = 1;
      Reach(next, after, index, Exec(o));
    }
  }

  void Reach(const State& state, int64_t time, int from,
             std::optional<Entry> entry) {
    const auto [known, first] = best_.try_emplace(KeyOf(state), time);
    if (!first && known->second <= time) return;
    known->second = time;
    states_.push_back(state);
    from_.push_back({from, entry});
    queue_.push(
        {time + rest_[state.next], static_cast<int>(states_.size()) - 1});
  }

  OracleAnswer Answer(int64_t time, int index) const {
    OracleAnswer answer{.time_ns = time, .schedule = {}};
    for (; index >= 0; index = from_[index].first) {
      if (from_[index].second.has_value()) {
        answer.schedule.push_back(*from_[index].second);
      }
    }
    std::reverse(answer.schedule.begin(), answer.schedule.end());
    return answer;
  }

  // Time plus that of the first runs still to come, and the index of the state.
  using Arrival = std::pair<int64_t, int>;

  const StepGraph& graph_;
  const Capabilities& caps_;
  const int64_t budget_;
  std::vector<std::vector<int>> need_, mutated_;  // versions, by op
  std::array<uint8_t, kMostStorages> last_{};
  std::array<int64_t, kMostOps + 1> rest_{};  // first runs from an op on
  std::vector<State> states_;
  std::vector<std::pair<int, std::optional<Entry>>> from_;
  std::unordered_map<Key, int64_t, KeyHash> best_;
  std::priority_queue<Arrival, std::vector<Arrival>, std::greater<Arrival>>
      queue_;
};

}  // namespace

std::optional<OracleAnswer> BestSchedule(const StepGraph& graph,
                                         const Capabilities& capabilities,
                                         int64_t budget_bytes) {
  if (graph.op_count() > kMostOps || graph.storage_count() > kMostStorages) {
    ADD_FAILURE() << "the oracle takes at most 12 ops and 12 storages";
    return std::nullopt;
  }
  return Oracle(graph, capabilities, budget_bytes).Solve();
}

}  // namespace reprise::planner
