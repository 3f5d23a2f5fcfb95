// SPDX-License-Identifier: Apache-2.0
#include "planner/verify/walk.h"

#include <algorithm>
#include <vector>

#include "base/str_cat.h"

namespace reprise::verify {
namespace {

constexpr Value kAbsent = -1;

struct Held {
  Value value = kAbsent;  // the version that is present
  int32_t lives = 0;      // begun so far
};

}  // namespace

StatusOr<Walked> Walk(const Facts& facts, Entries schedule) {
  const planner::StepGraph& graph = *facts.graph;
  std::vector<Held> held(graph.storages.size());
  std::vector<int32_t> runs(facts.op_count, 0);
  // Generator states of ops that run more than once are stored from the first
  // to the last of their runs.
  std::vector<int64_t> last(facts.op_count, -1);
  for (size_t i = 0; i < schedule.size(); ++i) {
    const int64_t entry = schedule[i];
    if (entry >= facts.op_count || entry < -graph.storage_count()) {
      return InvalidArgument(
          StrCat("schedule[", i, "]: no such op or storage"));
    }
    if (entry >= 0) last[entry] = static_cast<int64_t>(i);
  }

  Walked walked{.peak_bytes = graph.static_bytes};
  __int128 present = graph.static_bytes, time = 0;
  OpId next = 0;  // in base order
  for (size_t i = 0; i < schedule.size(); ++i) {
    const auto wrong = [&](const auto&... what) {
      return InvalidArgument(StrCat("schedule[", i, "]: ", what...));
    };
    if (schedule[i] < 0) {
      const auto s = static_cast<StorageId>(-schedule[i] - 1);
      if (held[s].value == kAbsent) {
        return wrong("storage ", s, " is freed but not present");
      }
      const OpId until = facts.HeldUntil(s);
      if (held[s].lives == 1 && until != planner::kNoOp && runs[until] == 0) {
        return wrong("storage ", s, " is freed while the program holds it");
      }
      held[s].value = kAbsent;
      present -= graph.storages[s].bytes;
      continue;
    }
    const auto o = static_cast<OpId>(schedule[i]);
    const planner::Op& op = graph.ops[o];
    const bool again = runs[o] > 0;
    if (!again && o != next) {
      return wrong("op ", o, " first runs before op ", next);
    }
    if (again) {
      const int most = facts.executor.max_runs;
      if ((most > 0 && runs[o] >= most) || !facts.MayRunAgain(o, next)) {
        return wrong("op ", o, " may not run again here");
      }
    }
    for (const Value v : facts.needs[o]) {
      const StorageId s = facts.storage[v];
      if (held[s].value != v) {
        return wrong("op ", o, " does not find storage ", s,
                     " at the version it needs");
      }
      if (graph.storages[s].pinned && held[s].lives > 1) {
        return wrong("op ", o, " reads a second life of pinned storage ", s);
      }
    }
    __int128 extra = op.workspace_bytes;
    for (const StorageId s : op.writes) {
      Held& storage = held[s];
      if (storage.value == kAbsent) {
        present += graph.storages[s].bytes;
        ++storage.lives;
      } else if (storage.value != facts.first_value[s]) {
        return wrong("op ", o, " writes storage ", s,
                     ", which is present at a later version");
      } else if (facts.executor.duplicate_outputs) {
        extra += graph.storages[s].bytes;
      }
    }
    for (const Value v : facts.makes[o]) held[facts.storage[v]].value = v;
    const bool state = op.kind == planner::OpKind::kSeeded;
    const bool ends = last[o] == static_cast<int64_t>(i);
    if (state && !again && !ends) present += op.state_bytes;
    if (present + extra > walked.peak_bytes) {
      walked.peak_bytes = static_cast<int64_t>(present + extra);
    }
    if (state && again && ends) present -= op.state_bytes;
    time += again ? facts.rerun_ns[o] : op.time_ns;
    if (time >= __int128{1} << 63)
      return wrong("the time of all runs overflows");
    if (!again) walked.base_time_ns += op.time_ns;
    ++runs[o];
    if (!again) ++next;
  }
  if (next != facts.op_count) {
    return InvalidArgument(StrCat("schedule: op ", next, " never runs"));
  }
  for (const StorageId s : graph.required) {
    const bool there = held[s].value == facts.first_value[s + 1] - 1 &&
                       (!graph.storages[s].pinned || held[s].lives == 1);
    if (!there) {
      return InvalidArgument(
          StrCat("schedule: storage ", s, " is required at the end"));
    }
  }
  walked.time_ns = static_cast<int64_t>(time);
  return walked;
}

}  // namespace reprise::verify
