// SPDX-License-Identifier: Apache-2.0
//
// The evaluator of every plan: walks a schedule and computes its peak and time.
// No solver, test, server or page computes a peak in any other way.
//
// State: which storages are present, at which version; live bytes.
//
//   free s   error if absent; live -= bytes(s)
//   exec o   1. first run: every op before o in base order has run; further
//               run: its kind and the capabilities must allow it, and the op
//               that runs next for the first time must be a replay point
//            2. every storage it needs is present at the version it needs
//            3. storages it writes come alive (already present at version 1:
//               nothing is allocated; at another version: error)
//            4. peak candidate = static + live + workspace: inputs and
//               outputs both count while o runs
//            5. time += time(o)
//
// At the end, every op must have run and every required storage be present at
// its last version. Frees are part of the schedule; `WithFrees` inserts them
// for a policy. With the capability duplicate_outputs, step 4 also counts the
// bytes of outputs that are present already. Integers only; O(length +
// arities).
//
// Where the executor has a link to host memory, storages can be there
// meanwhile. Memory follows the order of entries, only time follows the clock:
// of the ops (c), of the engine out (o) and of the engine in (i).
//
//   send s     o = max(o, c) + time of the copy; s must be present. From here
//              on, its bytes count on the host
//   sent s     c = max(c, end of that copy); then like free s
//   fetch s    s must be on the host and not present; live += bytes(s), and
//              i = max(i, c) + time of the copy
//   fetched s  c = max(c, end of that copy); must precede the first reader
//
// While a copy is under way, its storage is neither freed nor written. A host
// copy lasts until the last `fetched` that uses it, so that a value which is
// dropped twice is copied out once (drop it by free); another version of the
// storage ends it. A fetched storage goes on with the life in which it was
// sent.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "base/status.h"
#include "planner/model/step_graph.h"

namespace reprise::planner {

// When a storage is freed if the schedule's author does not say.
enum class FreePolicy : uint8_t {
  kEager,    // after the current life's last reader, unless required
  kProgram,  // eager, but a first life lasts at least to release_op
};

// How an executor runs a plan.
//
//   kFree  any valid schedule
//   kOnce  a set of saved storages: forward and backward run in base order. A
//          discarded storage is recomputed just before its first reader in the
//          backward, with everything that is missing for it, in base order, and
//          stays until its last reader. No op runs more than twice
//          (planner/once/once.h)
enum class Execution : uint8_t { kFree, kOnce };

// What the executor that will run the plan can do. The default is an
// unrestricted schedule under the reference semantics.
struct Capabilities {
  int max_runs = 0;  // runs per op, including the first; 0: no limit
  bool recompute_in_backward_only = false;  // only forward ops, in backward
  bool seeded_ok = false;
  bool collective_ok = false;
  bool duplicate_outputs = false;
  FreePolicy free_policy = FreePolicy::kEager;
  int64_t ns_per_op = 0;  // added to the time of every re-run
  Execution execution = Execution::kFree;
  Link link = {};  // to host memory; by default there is none
};

// Returns the capabilities with the implications of `execution` filled in: for
// kOnce recompute in the backward only, and at most two runs per op. Evaluator,
// rules and problems apply this.
Capabilities WithExecution(Capabilities capabilities);

// One step of a schedule.
struct Entry {
  enum class Kind : uint8_t { kExec, kFree, kSend, kSent, kFetch, kFetched };
  Kind kind = Kind::kExec;
  int32_t id = 0;  // OpId; of other kinds than kExec: StorageId

  friend bool operator==(const Entry&, const Entry&) = default;
};
inline Entry Exec(OpId op) { return {Entry::Kind::kExec, op}; }
inline Entry Free(StorageId storage) { return {Entry::Kind::kFree, storage}; }

using Schedule = std::vector<Entry>;

// Returns an entry as in protos and files: op e; free s is -1 - s; the kinds
// after it lie kMaxOps apart below, so that a reader which does not know them
// sees a storage that does not exist.
inline int64_t CodeOf(const Entry& entry) {
  if (entry.kind == Entry::Kind::kExec) return entry.id;
  return -1 - int64_t{entry.id} -
         (static_cast<int64_t>(entry.kind) - 1) * int64_t{kMaxOps};
}
// Returns the entry of a code; nothing if there is no such kind.
std::optional<Entry> EntryOf(int64_t code);
// Returns the ops that a schedule runs, in order.
std::vector<OpId> ExecsOf(std::span<const Entry> schedule);
// Returns whether a schedule uses the link to host memory.
bool UsesHost(std::span<const Entry> schedule);
// Returns the time of one copy, in ns, rounded up; at most 2^62.
int64_t CopyNs(int64_t bytes, int64_t bytes_per_s, int64_t latency_ns);

struct Evaluation {
  int64_t peak_bytes = 0;
  OpId peak_op = kNoOp;     // first op that reaches the peak
  int32_t peak_entry = -1;  // its position in the schedule
  int64_t time_ns = 0;
  int32_t execs = 0;
  int64_t host_peak_bytes = 0;
};

// Bytes alive while one exec runs, for pages and tests.
struct MemoryPoint {
  int64_t start_ns = 0;
  int64_t bytes = 0;
  OpId op = kNoOp;
};

// Computes peak and time of a schedule. INVALID_ARGUMENT with the first error:
// entry, op, storage, expected and actual version. If `profile` is given, it
// receives one point per exec.
StatusOr<Evaluation> Evaluate(const StepGraph& graph,
                              std::span<const Entry> schedule,
                              const Capabilities& capabilities,
                              std::vector<MemoryPoint>* profile = nullptr);

// One stay of a storage in a schedule: present from entry `born` to entry
// `dead` (what frees it, or the schedule's length).
struct Lifetime {
  StorageId storage = 0;
  int32_t born = 0;
  int32_t dead = 0;
};
// Returns all lives. The schedule must be valid.
std::vector<Lifetime> Lifetimes(const StepGraph& graph,
                                std::span<const Entry> schedule);

// Returns the execs with the frees of the policy inserted.
Schedule WithFrees(const StepGraph& graph, std::span<const OpId> execs,
                   FreePolicy policy);

// Returns the ops in base order, each once.
std::vector<OpId> BaseExecs(const StepGraph& graph);
// Returns the base order, every op once, with the frees of the policy.
Schedule BaseSchedule(const StepGraph& graph, FreePolicy policy);

}  // namespace reprise::planner
