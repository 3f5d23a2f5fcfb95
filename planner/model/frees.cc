// SPDX-License-Identifier: Apache-2.0
//
// Places the frees of a schedule, which determine the lives of storages.
#include <algorithm>
#include <numeric>
#include <vector>

#include "planner/model/evaluate.h"

namespace reprise::planner {
namespace {

// The lives of all storages under a free policy, found in one walk over the
// execs. Positions are indices of execs.
class LifeEnds {
 public:
  LifeEnds(const StepGraph& graph, std::span<const OpId> execs,
           FreePolicy policy)
      : graph_(graph),
        program_(policy == FreePolicy::kProgram),
        last_touch_(graph.storage_count(), kNone),
        first_life_(graph.storage_count(), 1),
        first_run_(graph.op_count(), kNone) {
    for (size_t at = 0; at < execs.size(); ++at) {
      const int32_t position = static_cast<int32_t>(at);
      const Op& op = graph.ops[execs[at]];
      for (const StorageId s : op.reads) last_touch_[s] = position;
      for (const StorageId s : op.writes) Write(s, position);
      if (first_run_[execs[at]] == kNone) first_run_[execs[at]] = position;
    }
    std::vector<uint8_t> required(graph.storage_count(), 0);
    for (const StorageId s : graph.required) required[s] = 1;
    for (StorageId s = 0; s < graph.storage_count(); ++s) {
      if (last_touch_[s] != kNone && !required[s]) Close(s);
    }
    std::sort(ends_.begin(), ends_.end());
  }

  // Returns (position of the exec after which it is freed, storage), sorted.
  const std::vector<std::pair<int32_t, StorageId>>& ends() const {
    return ends_;
  }

 private:
  static constexpr int32_t kNone = -1;

  // Returns whether the program holds the first life: its release op has not
  // run.
  bool IsHeld(StorageId s) const {
    const OpId release = graph_.storages[s].release_op;
    return program_ && first_life_[s] != 0 && release != kNoOp &&
           first_run_[release] == kNone;
  }

  // An op writes a storage: ends its previous life, unless that is held or
  // pinned.
  void Write(StorageId s, int32_t position) {
    const bool again = last_touch_[s] != kNone;
    if (again && !IsHeld(s) && !graph_.storages[s].pinned) {
      Close(s);
      first_life_[s] = 0;
    }
    last_touch_[s] = position;
  }

  // Records the end of a storage's current life.
  void Close(StorageId s) {
    if (IsHeld(s)) return;  // release op never runs: an incomplete step
    int32_t end = last_touch_[s];
    const OpId release = graph_.storages[s].release_op;
    if (program_ && first_life_[s] != 0 && release != kNoOp) {
      end = std::max(end, first_run_[release]);
    }
    ends_.emplace_back(end, s);
  }

  const StepGraph& graph_;
  const bool program_;
  std::vector<int32_t> last_touch_;  // by storage: position in this life
  std::vector<uint8_t> first_life_;  // by storage
  std::vector<int32_t> first_run_;   // by op: position
  std::vector<std::pair<int32_t, StorageId>> ends_;
};

}  // namespace

Schedule WithFrees(const StepGraph& graph, std::span<const OpId> execs,
                   FreePolicy policy) {
  const LifeEnds lives(graph, execs, policy);
  Schedule schedule;
  schedule.reserve(execs.size() + lives.ends().size());
  auto end = lives.ends().begin();
  for (size_t at = 0; at < execs.size(); ++at) {
    schedule.push_back(Exec(execs[at]));
    for (; end != lives.ends().end() && end->first == static_cast<int32_t>(at);
         ++end) {
      schedule.push_back(Free(end->second));
    }
  }
  return schedule;
}

std::vector<OpId> BaseExecs(const StepGraph& graph) {
  std::vector<OpId> execs(graph.op_count());
  std::iota(execs.begin(), execs.end(), 0);
  return execs;
}

Schedule BaseSchedule(const StepGraph& graph, FreePolicy policy) {
  return WithFrees(graph, BaseExecs(graph), policy);
}

std::vector<Lifetime> Lifetimes(const StepGraph& graph,
                                std::span<const Entry> schedule) {
  const int32_t length = static_cast<int32_t>(schedule.size());
  std::vector<int32_t> open(graph.storage_count(), -1);  // index of the life
  std::vector<Lifetime> lives;
  for (int32_t at = 0; at < length; ++at) {
    const Entry& entry = schedule[at];
    const auto begin = [&](StorageId s) {
      if (open[s] >= 0) return;
      open[s] = static_cast<int32_t>(lives.size());
      lives.push_back({.storage = s, .born = at, .dead = length});
    };
    if (entry.kind == Entry::Kind::kExec) {
      for (const StorageId s : graph.ops[entry.id].writes) begin(s);
    } else if (entry.kind == Entry::Kind::kFetch) {
      begin(entry.id);
    } else if (entry.kind <= Entry::Kind::kSent &&
               entry.kind != Entry::Kind::kSend && open[entry.id] >= 0) {
      lives[open[entry.id]].dead = at;
      open[entry.id] = -1;
    }
  }
  return lives;
}

}  // namespace reprise::planner
