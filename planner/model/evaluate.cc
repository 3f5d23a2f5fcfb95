// SPDX-License-Identifier: Apache-2.0
#include "planner/model/evaluate.h"

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
        last_run_(graph.op_count(), -1) {}

  // Evaluates a schedule; see Evaluate.
  StatusOr<Evaluation> Walk(std::span<const Entry> schedule,
                            std::vector<MemoryPoint>* profile) {
    RETURN_IF_ERROR(CheckIds(schedule));
    for (; entry_ < static_cast<int32_t>(schedule.size()); ++entry_) {
      const Entry& entry = schedule[entry_];
      if (entry.kind == Entry::Kind::kFree) {
        RETURN_IF_ERROR(FreeStorage(entry.id));
      } else {
        RETURN_IF_ERROR(ExecOp(entry.id, profile));
      }
    }
    RETURN_IF_ERROR(CheckEnd());
    return result_;
  }

 private:
  // Names the current entry and its op, for errors.
  std::string Where(OpId op) const {
    const std::string& name = graph_.ops[op].name;
    return StrCat("schedule[", entry_, "]: op ", op,
                  name.empty() ? "" : " (" + name.substr(0, 80) + ")");
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
    return OkStatus();
  }

  // Frees a storage. An error if it is absent, or the program still holds it.
  Status FreeStorage(StorageId s) {
    if (present_[s] == kNoValue) {
      return InvalidArgument(StrCat("schedule[", entry_, "]: storage ", s,
                                    " is freed but not present"));
    }
    const OpId held = rules_.held_until[s];
    if (lives_[s] == 1 && held != kNoOp && runs_[held] == 0) {
      return InvalidArgument(
          StrCat("schedule[", entry_, "]: storage ", s, " is freed before op ",
                 held, " has run, up to which the program holds it"));
    }
    present_[s] = kNoValue;
    live_ -= graph_.storages[s].bytes;
    return OkStatus();
  }

  // Checks the order of first runs, and whether a further run is allowed.
  Status CheckMayRun(OpId o) {
    if (runs_[o] == 0) {
      if (o == next_) return OkStatus();
      return InvalidArgument(StrCat(Where(o),
                                    " runs for the first time before "
                                    "op ",
                                    next_));
    }
    if (capabilities_.max_runs > 0 && runs_[o] >= capabilities_.max_runs) {
      return InvalidArgument(StrCat(Where(o), " runs more than ",
                                    capabilities_.max_runs, " times"));
    }
    if (!rules_.may_rerun[o]) {
      return InvalidArgument(StrCat(Where(o),
                                    " must not run again: its kind, "
                                    "its phase or the executor forbids it"));
    }
    if (!rules_.MayRunAgain(o, next_)) return MisplacedRerun(o);
    return OkStatus();
  }

  // Returns why `o` must not run again right before the next op in base order.
  Status MisplacedRerun(OpId o) const {
    if (next_ < graph_.op_count() && !graph_.ops[next_].replay_point) {
      return InvalidArgument(
          StrCat(Where(o), " runs again right before op ", next_,
                 ", where the executor cannot run anything again"));
    }
    if (!rules_.IsInWindow(o, next_)) {
      return InvalidArgument(StrCat(Where(o), " runs again right before op ",
                                    next_, ", outside its replay windows"));
    }
    return InvalidArgument(StrCat(Where(o),
                                  " runs again, but the next op in base order "
                                  "is not a backward op"));
  }

  // Checks that every input is present at the version that the op needs.
  Status CheckNeeds(OpId o) {
    for (const ValueId v : versions_.Need(o)) {
      const StorageId s = versions_.storage[v];
      if (present_[s] != v) {
        const int32_t number = PresentNumber(s);
        return InvalidArgument(
            StrCat(Where(o), " needs storage ", s, " at version ",
                   versions_.Number(v), ", but ",
                   number == 0 ? "it is not present"
                               : StrCat("version ", number, " is present")));
      }
      if (graph_.storages[s].pinned && lives_[s] > 1) {
        return InvalidArgument(StrCat(Where(o), " reads storage ", s,
                                      ", which is pinned, from a second life"));
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
        return InvalidArgument(StrCat(Where(o), " writes storage ", s,
                                      ", but version ", PresentNumber(s),
                                      " is present: free it first"));
      }
    }
    for (const ValueId v : versions_.Make(o))
      present_[versions_.storage[v]] = v;

    const bool again = runs_[o] > 0;
    const bool keeps_state =
        op.kind == OpKind::kSeeded && (again || last_run_[o] != entry_);
    if (keeps_state && !again) live_ += op.state_bytes;
    const int64_t bytes = graph_.static_bytes + live_ + workspace;
    if (bytes > result_.peak_bytes || result_.peak_op == kNoOp) {
      result_.peak_bytes = bytes;
      result_.peak_op = o;
      result_.peak_entry = entry_;
    }
    if (profile != nullptr) {
      profile->push_back(
          {.start_ns = result_.time_ns, .bytes = bytes, .op = o});
    }
    if (keeps_state && last_run_[o] == entry_) live_ -= op.state_bytes;
    const int64_t run_ns = again ? rules_.rerun_ns[o] : op.time_ns;
    if (run_ns > std::numeric_limits<int64_t>::max() - result_.time_ns) {
      return InvalidArgument(StrCat(Where(o),
                                    ": the times of all runs sum to "
                                    "more than 2^63"));
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
  int32_t entry_ = 0;
  OpId next_ = 0;     // next op to run for the first time
  int64_t live_ = 0;  // bytes of storages and generator states
  Evaluation result_{.peak_bytes = 0};
};

}  // namespace

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
