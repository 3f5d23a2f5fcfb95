// SPDX-License-Identifier: Apache-2.0
#include "planner/model/evaluate.h"

#include <algorithm>
#include <limits>
#include <string>

#include "base/str_cat.h"
#include "planner/model/rules.h"
#include "planner/model/versions.h"

namespace reprise::planner {
namespace {

// Evaluator: the state of one walk over a schedule.
class Evaluator {
 public:
  Evaluator(const StepGraph& graph, const Capabilities& capabilities)
      : graph_(graph),
        capabilities_(WithExecution(capabilities)),
        versions_(WalkVersions(graph)),
        rules_(MakeRules(graph, versions_, capabilities)),
        present_(graph.storage_count(), kNoValue),
        lives_(graph.storage_count(), 0),
        runs_(graph.op_count(), 0),
        last_run_(graph.op_count(), -1),
        host_(graph.storage_count()) {}

  // Evaluates a schedule; see Evaluate.
  StatusOr<Evaluation> Walk(std::span<const Entry> schedule,
                            std::vector<MemoryPoint>* profile) {
    RETURN_IF_ERROR(CheckIds(schedule));
    for (; entry_ < static_cast<int32_t>(schedule.size()); ++entry_) {
      const Entry& entry = schedule[entry_];
      if (entry.kind == Entry::Kind::kExec) {
        RETURN_IF_ERROR(ExecOp(entry.id, profile));
      } else if (entry.kind == Entry::Kind::kFree) {
        RETURN_IF_ERROR(FreeStorage(entry.id));
      } else {
        RETURN_IF_ERROR(Copy(entry));
      }
    }
    RETURN_IF_ERROR(CheckEnd());
    return result_;
  }

 private:
  // What is under way between device and host.
  enum class Under : uint8_t { kNothing, kSend, kFetch };
  // A storage as the host sees it.
  struct Hosted {
    ValueId value = kNoValue;  // of the copy, also while it is made
    Under under = Under::kNothing;
    int64_t done_ns = 0;  // end of the copy under way
  };

  // Returns an error about a storage at the current entry.
  Status Wrong(StorageId s, const auto&... what) const {
    return InvalidArgument(
        StrCat("schedule[", entry_, "]: storage ", s, " ", what...));
  }
  // The same about an op.
  Status WrongOp(OpId op, const auto&... what) const {
    const std::string& name = graph_.ops[op].name;
    return InvalidArgument(
        StrCat("schedule[", entry_, "]: op ", op,
               name.empty() ? "" : " (" + name.substr(0, 80) + ")", what...));
  }
  // Returns the version of a storage that is present, for messages; 0 if
  // absent.
  int32_t PresentNumber(StorageId s) const {
    return present_[s] == kNoValue ? 0 : versions_.Number(present_[s]);
  }

  // Checks that ids are in range. Also finds the last run of every op, until
  // which the generator state of a recomputed seeded op is stored.
  Status CheckIds(std::span<const Entry> schedule) {
    for (size_t i = 0; i < schedule.size(); ++i) {
      const bool exec = schedule[i].kind == Entry::Kind::kExec;
      const int count = exec ? graph_.op_count() : graph_.storage_count();
      if (schedule[i].id < 0 || schedule[i].id >= count) {
        return InvalidArgument(StrCat("schedule[", i, "]: there is no ",
                                      exec ? "op " : "storage ",
                                      schedule[i].id));
      }
      if (exec) last_run_[schedule[i].id] = static_cast<int32_t>(i);
    }
    if (!UsesHost(schedule)) return OkStatus();
    // A host copy ends where no fetch of it follows.
    last_use_.assign(schedule.size(), 0);
    std::vector<uint8_t> wanted(graph_.storage_count(), 0);
    for (size_t i = schedule.size(); i-- > 0;) {
      const auto [kind, id] = schedule[i];
      if (kind == Entry::Kind::kFetch) wanted[id] = 1;
      if (kind == Entry::Kind::kSend) wanted[id] = 0;
      if (kind == Entry::Kind::kSent || kind == Entry::Kind::kFetched) {
        last_use_[i] = wanted[id] == 0;
      }
    }
    return OkStatus();
  }

  // Frees a storage. An error if it is absent, or the program still holds it.
  Status FreeStorage(StorageId s) {
    if (present_[s] == kNoValue) return Wrong(s, "is freed but not present");
    if (host_[s].under != Under::kNothing) {
      return Wrong(s, "is freed while a copy of it is under way");
    }
    const OpId held = rules_.held_until[s];
    if (lives_[s] == 1 && held != kNoOp && runs_[held] == 0) {
      return Wrong(s, "is freed before op ", held,
                   " has run, up to which the program holds it");
    }
    present_[s] = kNoValue;
    live_ -= graph_.storages[s].bytes;
    return OkStatus();
  }

  // Raises the peak, which `op` reaches.
  void RaisePeak(int64_t bytes, OpId op) {
    if (bytes <= result_.peak_bytes && result_.peak_op != kNoOp) return;
    result_.peak_bytes = bytes;
    result_.peak_op = op;
    result_.peak_entry = entry_;
  }

  void EndHostCopy(StorageId s) {
    if (host_[s].value == kNoValue) return;
    host_[s].value = kNoValue;
    host_live_ -= graph_.storages[s].bytes;
  }

  // Begins a copy on an engine, behind those before it.
  Status Begin(StorageId s, Under under, int64_t bytes_per_s,
               int64_t& engine_ns) {
    const int64_t copy_ns = CopyNs(graph_.storages[s].bytes, bytes_per_s,
                                   capabilities_.link.latency_ns);
    engine_ns = std::max(engine_ns, result_.time_ns);
    if (copy_ns > std::numeric_limits<int64_t>::max() - engine_ns) {
      return Wrong(s, "is copied: the times sum to more than 2^63");
    }
    engine_ns += copy_ns;
    host_[s].under = under;
    host_[s].done_ns = engine_ns;
    return OkStatus();
  }

  // Waits for the copy of a storage.
  void Await(StorageId s) {
    result_.time_ns = std::max(result_.time_ns, host_[s].done_ns);
    host_[s].under = Under::kNothing;
  }

  // Runs an entry that uses the link to host memory.
  Status Copy(const Entry& entry) {
    const StorageId s = entry.id;
    const Link& link = capabilities_.link;
    const int64_t bytes = graph_.storages[s].bytes;
    Hosted& host = host_[s];
    switch (entry.kind) {
      case Entry::Kind::kSend:
        if (link.host_bytes <= 0) {
          return Wrong(s, "is sent, but the executor has no host memory");
        }
        if (graph_.storages[s].stays) {
          return Wrong(s, "is sent, but the executor cannot copy it");
        }
        if (present_[s] == kNoValue) {
          return Wrong(s, "is sent but not present");
        }
        if (host.under != Under::kNothing) {
          return Wrong(s, "is sent while a copy of it is under way");
        }
        // An earlier copy has ended: no fetch of it can follow.
        host.value = present_[s];
        host_live_ += bytes;
        if (host_live_ > link.host_bytes) {
          return Wrong(s, "is sent: the host then holds ", host_live_,
                       " bytes, and may hold ", link.host_bytes);
        }
        result_.host_peak_bytes = std::max(result_.host_peak_bytes, host_live_);
        return Begin(s, Under::kSend, link.out_bytes_per_s, out_ns_);
      case Entry::Kind::kSent:
        if (host.under != Under::kSend) {
          return Wrong(s, "is taken as sent, but no send is under way");
        }
        Await(s);
        if (last_use_[entry_] != 0) EndHostCopy(s);
        return FreeStorage(s);
      case Entry::Kind::kFetch:
        if (host.value == kNoValue) {
          return Wrong(s, "is fetched, but the host has no copy of it");
        }
        if (present_[s] != kNoValue) {
          return Wrong(s, "is fetched but present");
        }
        present_[s] = host.value;
        live_ += bytes;
        RaisePeak(graph_.static_bytes + live_,
                  std::min(next_, graph_.op_count() - 1));
        return Begin(s, Under::kFetch, link.in_bytes_per_s, in_ns_);
      default:
        if (host.under != Under::kFetch) {
          return Wrong(s, "is taken as fetched, but no fetch is under way");
        }
        Await(s);
        if (last_use_[entry_] != 0) EndHostCopy(s);
        return OkStatus();
    }
  }

  // Checks the order of first runs, and whether a further run is allowed.
  Status CheckMayRun(OpId o) {
    if (runs_[o] == 0) {
      if (o == next_) return OkStatus();
      return WrongOp(o,
                     " runs for the first time before "
                     "op ",
                     next_);
    }
    if (capabilities_.max_runs > 0 && runs_[o] >= capabilities_.max_runs) {
      return WrongOp(o, " runs more than ", capabilities_.max_runs, " times");
    }
    if (!rules_.may_rerun[o]) {
      return WrongOp(o,
                     " must not run again: its kind, "
                     "its phase or the executor forbids it");
    }
    if (!rules_.MayRunAgain(o, next_)) return MisplacedRerun(o);
    return OkStatus();
  }

  // Returns why `o` must not run again right before the next op in base order.
  Status MisplacedRerun(OpId o) const {
    if (next_ < graph_.op_count() && !graph_.ops[next_].replay_point) {
      return WrongOp(o, " runs again right before op ", next_,
                     ", where the executor cannot run anything again");
    }
    if (!rules_.IsInWindow(o, next_)) {
      return WrongOp(o, " runs again right before op ", next_,
                     ", outside its replay windows");
    }
    return WrongOp(o,
                   " runs again, but the next op in base order "
                   "is not a backward op");
  }

  // Checks that every input is present at the version that the op needs.
  Status CheckNeeds(OpId o) {
    for (const ValueId v : versions_.Need(o)) {
      const StorageId s = versions_.storage[v];
      if (present_[s] != v) {
        const int32_t number = PresentNumber(s);
        return WrongOp(o, " needs storage ", s, " at version ",
                       versions_.Number(v), ", but ",
                       number == 0 ? "it is not present"
                                   : StrCat("version ", number, " is present"));
      }
      if (host_[s].under == Under::kFetch) {
        return WrongOp(o, " reads storage ", s, " before it is fetched");
      }
      if (graph_.storages[s].pinned && lives_[s] > 1) {
        return WrongOp(o, " reads storage ", s,
                       ", which is pinned, from a second life");
      }
    }
    return OkStatus();
  }

  // Runs an op: updates what is present, peak and time.
  Status ExecOp(OpId o, std::vector<MemoryPoint>* profile) {
    const Op& op = graph_.ops[o];
    RETURN_IF_ERROR(CheckMayRun(o));
    RETURN_IF_ERROR(CheckNeeds(o));
    int64_t workspace = op.workspace_bytes;
    for (const StorageId s : op.writes) {
      if (present_[s] == kNoValue) {
        live_ += graph_.storages[s].bytes;
        ++lives_[s];
      } else if (versions_.IsFirst(present_[s])) {
        if (capabilities_.duplicate_outputs) {
          workspace += graph_.storages[s].bytes;
        }
      } else {
        return WrongOp(o, " writes storage ", s, ", but version ",
                       PresentNumber(s), " is present: free it first");
      }
    }
    for (const ValueId v : versions_.Make(o)) {
      const StorageId s = versions_.storage[v];
      if (host_[s].under != Under::kNothing) {
        return WrongOp(o, " changes storage ", s,
                       " while a copy of it is under way");
      }
      present_[s] = v;
      if (host_[s].value != v) EndHostCopy(s);
    }

    const bool again = runs_[o] > 0;
    const bool keeps_state =
        op.kind == OpKind::kSeeded && (again || last_run_[o] != entry_);
    if (keeps_state && !again) live_ += op.state_bytes;
    const int64_t bytes = graph_.static_bytes + live_ + workspace;
    RaisePeak(bytes, o);
    if (profile != nullptr) {
      profile->push_back(
          {.start_ns = result_.time_ns, .bytes = bytes, .op = o});
    }
    if (keeps_state && last_run_[o] == entry_) live_ -= op.state_bytes;
    const int64_t run_ns = again ? rules_.rerun_ns[o] : op.time_ns;
    if (run_ns > std::numeric_limits<int64_t>::max() - result_.time_ns) {
      return WrongOp(o,
                     ": the times of all runs sum to "
                     "more than 2^63");
    }
    result_.time_ns += run_ns;
    ++result_.execs;
    ++runs_[o];
    if (!again) ++next_;
    return OkStatus();
  }

  // Checks that every op has run and required storages are at their last
  // version.
  Status CheckEnd() {
    if (next_ < graph_.op_count()) {
      return InvalidArgument(StrCat("schedule: op ", next_, " never runs"));
    }
    for (StorageId s = 0; s < graph_.storage_count(); ++s) {
      if (host_[s].under == Under::kNothing) continue;
      return InvalidArgument(
          StrCat("schedule: storage ", s, " has a copy under way at the end"));
    }
    for (const StorageId s : graph_.required) {
      if (present_[s] == versions_.Last(s)) {
        if (!graph_.storages[s].pinned || lives_[s] == 1) continue;
        return InvalidArgument(StrCat("schedule: storage ", s,
                                      " is pinned and required, but ends in a "
                                      "second life"));
      }
      return InvalidArgument(
          StrCat("schedule: storage ", s, " is required at version ",
                 versions_.Number(versions_.Last(s)), " at the end, but ",
                 present_[s] == kNoValue
                     ? "it is not present"
                     : StrCat("version ", PresentNumber(s), " is present")));
    }
    return OkStatus();
  }

  const StepGraph& graph_;
  const Capabilities capabilities_;
  const Versions versions_;
  const Rules rules_;
  std::vector<ValueId> present_;   // by storage
  std::vector<int32_t> lives_;     // by storage: lives begun
  std::vector<int32_t> runs_;      // by op
  std::vector<int32_t> last_run_;  // by op: entry
  std::vector<Hosted> host_;       // by storage
  std::vector<uint8_t> last_use_;  // by entry: it ends the host copy
  int64_t host_live_ = 0;
  int64_t out_ns_ = 0, in_ns_ = 0;  // when the engines are free
  int32_t entry_ = 0;
  OpId next_ = 0;     // next op to run for the first time
  int64_t live_ = 0;  // bytes of storages and generator states
  Evaluation result_{.peak_bytes = 0};
};

}  // namespace

std::optional<Entry> EntryOf(int64_t code) {
  if (code >= 0) {
    if (code >= int64_t{kMaxOps}) return std::nullopt;
    return Exec(static_cast<OpId>(code));
  }
  // Not -1 - code: it would overflow for the smallest.
  const int64_t below = -(code + 1), kind = below / int64_t{kMaxOps};
  if (kind >= static_cast<int64_t>(Entry::Kind::kFetched)) return std::nullopt;
  return Entry{.kind = static_cast<Entry::Kind>(kind + 1),
               .id = static_cast<StorageId>(below % int64_t{kMaxOps})};
}

std::vector<OpId> ExecsOf(std::span<const Entry> schedule) {
  std::vector<OpId> execs;
  for (const Entry& entry : schedule) {
    if (entry.kind == Entry::Kind::kExec) execs.push_back(entry.id);
  }
  return execs;
}

bool UsesHost(std::span<const Entry> schedule) {
  return std::any_of(schedule.begin(), schedule.end(), [](const Entry& entry) {
    return entry.kind > Entry::Kind::kFree;
  });
}

int64_t CopyNs(int64_t bytes, int64_t bytes_per_s, int64_t latency_ns) {
  constexpr __int128 kMost = __int128{1} << 62;
  if (bytes_per_s <= 0) return bytes > 0 ? kMost : latency_ns;
  const __int128 ns =
      latency_ns +
      (__int128{bytes} * 1'000'000'000 + bytes_per_s - 1) / bytes_per_s;
  return static_cast<int64_t>(std::min(ns, kMost));
}

StatusOr<Evaluation> Evaluate(const StepGraph& graph,
                              std::span<const Entry> schedule,
                              const Capabilities& capabilities,
                              std::vector<MemoryPoint>* profile) {
  if (profile != nullptr) profile->clear();
  if (graph.op_count() == 0 && schedule.empty()) {
    return Evaluation{.peak_bytes = graph.static_bytes};
  }
  return Evaluator(graph, capabilities).Walk(schedule, profile);
}

}  // namespace reprise::planner
