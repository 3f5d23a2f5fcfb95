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
  // With a link: versions on the host, copies under way (1 + the time left, in
  // the upper half of the range if it comes in), and the time left for all.
  std::array<uint8_t, kMostStorages> host{}, under{};
  uint8_t out_left = 0, in_left = 0;
};

constexpr uint8_t kComesIn = 128;

// 4 + 12 * (4 + 1) + 12 * (3 + 1) = 112 bits; 12 * (4 + 8) + 16 of the link.
struct Key {
  uint64_t high = 0, low = 0;
  std::array<uint64_t, 3> link{};
  friend bool operator==(const Key&, const Key&) = default;
};
struct KeyHash {
  size_t operator()(const Key& key) const {
    uint64_t hash = key.high * 0x9e3779b97f4a7c15 ^ key.low;
    for (const uint64_t word : key.link) {
      if (word != 0) hash = (hash ^ word) * 0xc4ceb9fe1a85ec53 ^ hash >> 29;
    }
    return hash * 0xff51afd7ed558ccd >> 8;
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
  for (int s = 0; s < kMostStorages; ++s) {
    key.link[2] = key.link[2] << 4 | state.host[s];
    key.link[s / 8] = key.link[s / 8] << 8 | state.under[s];
  }
  key.link[1] = (key.link[1] << 8 | state.out_left) << 8 | state.in_left;
  return key;
}

class Oracle {
 public:
  Oracle(const StepGraph& graph, const Capabilities& capabilities,
         int64_t budget, int64_t* most_states)
      : graph_(graph),
        caps_(capabilities),
        budget_(budget),
        most_states_(most_states) {
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
      if (most_states_ != nullptr &&
          static_cast<int64_t>(states_.size()) > *most_states_) {
        *most_states_ = -1;
        return std::nullopt;
      }
      for (StorageId s = 0; s < graph_.storage_count(); ++s) {
        if (state.version[s] != 0 && state.under[s] == 0 && MayFree(state, s)) {
          State next = state;
          next.version[s] = 0;
          // Whatever is made again then is in a later life; what comes back from
          // the host is not.
          if (state.host[s] == 0) next.later[s] = 0;
          Reach(next, time, index, Free(s));
        }
        if (caps_.link.host_bytes > 0) Copy(state, s, time, index);
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
    if (state.out_left + state.in_left > 0) return false;
    for (const uint8_t under : state.under) {
      if (under != 0) return false;
    }
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

  int64_t BytesOn(const State& state) const {
    int64_t bytes = graph_.static_bytes;
    for (StorageId s = 0; s < graph_.storage_count(); ++s) {
      if (state.version[s] != 0) bytes += graph_.storages[s].bytes;
    }
    for (OpId p = 0; p < graph_.op_count(); ++p) {
      if (state.stored[p] != 0) bytes += graph_.ops[p].state_bytes;
    }
    return bytes;
  }

  // Lets the engines work for a while.
  static void Pass(State& state, int64_t ns) {
    const auto less = [ns](int left) {
      return static_cast<uint8_t>(std::max<int64_t>(0, left - ns));
    };
    for (uint8_t& under : state.under) {
      if (under == 0) continue;
      const uint8_t direction = under & kComesIn;
      under = direction | (1 + less((under & ~kComesIn) - 1));
    }
    state.out_left = less(state.out_left);
    state.in_left = less(state.in_left);
  }

  // What can be done with the link for one storage.
  void Copy(const State& state, StorageId s, int64_t time, int index) {
    const int64_t bytes = graph_.storages[s].bytes;
    const auto copy_ns = [&](int64_t rate) {
      return caps_.link.latency_ns + (bytes * 1'000'000'000 + rate - 1) / rate;
    };
    State next = state;
    const uint8_t under = state.under[s];
    if (under != 0) {
      const bool in = (under & kComesIn) != 0;
      const int64_t left = (under & ~kComesIn) - 1;
      next.under[s] = 0;
      if (!in && !MayFree(state, s)) return;
      if (!in) next.version[s] = 0;
      Pass(next, left);
      Reach(next, time + left, index,
            Entry{in ? Entry::Kind::kFetched : Entry::Kind::kSent, s});
      return;
    }
    if (state.host[s] != 0) {
      next.host[s] = 0;  // not needed any more
      if (state.version[s] == 0) next.later[s] = 0;
      Reach(next, time, index, std::nullopt);
      if (state.version[s] != 0) return;
      next = state;
      next.version[s] = state.host[s];
      if (BytesOn(next) > budget_) return;
      next.in_left += static_cast<uint8_t>(copy_ns(caps_.link.in_bytes_per_s));
      next.under[s] = kComesIn | (1 + next.in_left);
      Reach(next, time, index, Entry{Entry::Kind::kFetch, s});
      return;
    }
    if (state.version[s] == 0) return;
    int64_t on_host = bytes;
    for (StorageId other = 0; other < graph_.storage_count(); ++other) {
      if (state.host[other] != 0) on_host += graph_.storages[other].bytes;
    }
    if (on_host > caps_.link.host_bytes) return;
    next.host[s] = state.version[s];
    next.out_left += static_cast<uint8_t>(copy_ns(caps_.link.out_bytes_per_s));
    next.under[s] = 1 + next.out_left;
    Reach(next, time, index, Entry{Entry::Kind::kSend, s});
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
      if ((state.under[s] & kComesIn) != 0) return;
      if (graph_.storages[s].pinned && state.later[s] != 0) return;
    }
    State next = state;
    int64_t extra = op.workspace_bytes;
    for (const StorageId s : op.writes) {
      if (state.version[s] > 1 || state.under[s] != 0) return;
      if (state.version[s] == 0) next.later[s] = again && LivesMatter(s);
      if (state.host[s] != 1) next.host[s] = 0;
      if (state.version[s] == 1 && caps_.duplicate_outputs) {
        extra += graph_.storages[s].bytes;
      }
      next.version[s] = 1;
    }
    for (size_t i = 0; i < op.mutates.size(); ++i) {
      const StorageId s = op.mutates[i];
      if (state.under[s] != 0) return;
      next.version[s] = mutated_[o][i];
      if (state.host[s] != next.version[s]) next.host[s] = 0;
    }
    if (caps_.max_runs > 1) ++next.runs[o];
    if (!again) ++next.next;
    const int64_t bytes = BytesOn(next) + extra;
    const int64_t after =
        time +
        (again ? RerunNs(op) + caps_.ns_per_op * op.launches : op.time_ns);
    Pass(next, after - time);
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
  int64_t* const most_states_;
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
                                         int64_t budget_bytes,
                                         int64_t* most_states) {
  if (graph.op_count() > kMostOps || graph.storage_count() > kMostStorages) {
    ADD_FAILURE() << "the oracle takes at most 12 ops and 12 storages";
    return std::nullopt;
  }
  return Oracle(graph, capabilities, budget_bytes, most_states).Solve();
}

}  // namespace reprise::planner
