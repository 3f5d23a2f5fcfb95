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
  Value on_host = kAbsent;
  __int128 busy_until = -1;  // end of a copy nobody has waited for; -1: none
  bool coming = false;       // that copy goes to the device
};

enum Copying : int64_t { kFree, kSend, kSent, kFetch, kFetched, kUnknown };
constexpr int64_t kApart = int64_t{1} << 24;

// Returns the storage of a negative entry.
StorageId StorageOf(int64_t entry) {
  return static_cast<StorageId>(-(entry + 1) % kApart);
}

int64_t WhatOf(int64_t entry) { return -(entry + 1) / kApart; }

// Returns by entry whether a host copy is of no use after it: the next entry
// that begins a copy of the storage is no fetch.
std::vector<bool> LastUses(const planner::StepGraph& graph, Entries schedule) {
  std::vector<bool> last(schedule.size(), false);
  std::vector<bool> fetched_later(graph.storages.size(), false);
  for (size_t i = schedule.size(); i > 0; --i) {
    const int64_t entry = schedule[i - 1];
    if (entry >= 0 || WhatOf(entry) == kFree) continue;
    last[i - 1] = !fetched_later[StorageOf(entry)];
    if (WhatOf(entry) == kFetch) fetched_later[StorageOf(entry)] = true;
    if (WhatOf(entry) == kSend) fetched_later[StorageOf(entry)] = false;
  }
  return last;
}

// Returns the time of a copy, rounded up.
__int128 CopyTime(int64_t bytes, int64_t rate, int64_t latency) {
  constexpr __int128 kMost = __int128{1} << 62;
  if (bytes == 0) return std::min<__int128>(latency, kMost);
  if (rate <= 0) return kMost;
  const __int128 scaled = static_cast<__int128>(bytes) * 1000000000;
  const __int128 time = scaled / rate + (scaled % rate != 0) + latency;
  return std::min(time, kMost);
}

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
    if (entry >= facts.op_count ||
        (entry < 0 && (WhatOf(entry) >= kUnknown ||
                       StorageOf(entry) >= graph.storage_count()))) {
      return InvalidArgument(
          StrCat("schedule[", i, "]: no such op or storage"));
    }
    if (entry >= 0) last[entry] = static_cast<int64_t>(i);
  }

  const planner::Link& link = facts.executor.link;
  const std::vector<bool> last_use = LastUses(graph, schedule);
  Walked walked{.peak_bytes = graph.static_bytes};
  __int128 present = graph.static_bytes, time = 0;
  __int128 on_host = 0, out_free = 0, in_free = 0;  // bytes; engines' clocks
  OpId next = 0;                                    // in base order
  for (size_t i = 0; i < schedule.size(); ++i) {
    const auto wrong = [&](const auto&... what) {
      return InvalidArgument(StrCat("schedule[", i, "]: ", what...));
    };
    const auto leaves_host = [&](StorageId s) {
      if (held[s].on_host != kAbsent) on_host -= graph.storages[s].bytes;
      held[s].on_host = kAbsent;
    };
    if (schedule[i] < 0) {
      const StorageId s = StorageOf(schedule[i]);
      const int64_t what = WhatOf(schedule[i]), bytes = graph.storages[s].bytes;
      const bool busy = held[s].busy_until >= 0;
      const auto begins = [&](__int128& engine, int64_t rate) {
        engine =
            std::max(engine, time) + CopyTime(bytes, rate, link.latency_ns);
        held[s].busy_until = engine;
        held[s].coming = what == kFetch;
        return engine < __int128{1} << 63;
      };
      if (what == kSend) {
        if (link.host_bytes <= 0 || graph.storages[s].stays ||
            held[s].value == kAbsent || busy) {
          return wrong("storage ", s, " cannot be sent");
        }
        held[s].on_host = held[s].value;
        on_host += bytes;
        if (on_host > link.host_bytes) return wrong("the host is full");
        walked.host_peak_bytes =
            std::max(walked.host_peak_bytes, static_cast<int64_t>(on_host));
        if (!begins(out_free, link.out_bytes_per_s)) {
          return wrong("a copy ends too late");
        }
        continue;
      }
      if (what == kFetch) {
        if (held[s].on_host == kAbsent || held[s].value != kAbsent) {
          return wrong("storage ", s, " cannot be fetched");
        }
        held[s].value = held[s].on_host;
        present += bytes;
        walked.peak_bytes =
            std::max(walked.peak_bytes, static_cast<int64_t>(present));
        if (!begins(in_free, link.in_bytes_per_s)) {
          return wrong("a copy ends too late");
        }
        continue;
      }
      if (what == kFree && busy) {
        return wrong("storage ", s, " is freed while it is copied");
      }
      if (what != kFree) {
        if (!busy || held[s].coming != (what == kFetched)) {
          return wrong("nothing to wait for of storage ", s);
        }
        time = std::max(time, held[s].busy_until);
        held[s].busy_until = -1;
        if (last_use[i]) leaves_host(s);
        if (what == kFetched) continue;
      }
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
      if (held[s].busy_until >= 0 && held[s].coming) {
        return wrong("op ", o, " reads storage ", s, " before it is there");
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
    for (const Value v : facts.makes[o]) {
      Held& storage = held[facts.storage[v]];
      if (storage.busy_until >= 0) {
        return wrong("op ", o, " changes what is being copied");
      }
      storage.value = v;
      if (storage.on_host != v) leaves_host(facts.storage[v]);
    }
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
  for (size_t s = 0; s < held.size(); ++s) {
    if (held[s].busy_until >= 0) {
      return InvalidArgument(
          StrCat("schedule: a copy of storage ", s, " has not ended"));
    }
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
