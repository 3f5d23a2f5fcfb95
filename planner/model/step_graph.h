// SPDX-License-Identifier: Apache-2.0
//
// The step graph: one training step as the planner sees it.
//
//   op 0   op 1   op 2   ...            in base order: the order they ran in
//    |writes|      |reads
//    v      v      v
//   storage 0, storage 1, ...           allocations with bytes
//
// A storage has versions: its writer leaves version 1, and every op that lists
// it in `mutates` destroys version i and leaves version i+1. An op that mutates
// a storage reads it too. Walking the ops in base order determines which
// version every op needs; `Versions` holds the result. Static memory is a
// single number, present all the time, and is not listed as storages.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"

namespace reprise::planner {

using OpId = int32_t;
using StorageId = int32_t;

inline constexpr OpId kNoOp = -1;

// Limit for ops and for storages, so that ids and indices fit into int32.
inline constexpr size_t kMaxOps = size_t{1} << 24;

enum class Phase : uint8_t { kForward, kBackward, kOptimizer };

// Whether an op may run again: pure always; seeded from stored generator state;
// once never; collective if the executor can; view always, at no cost.
enum class OpKind : uint8_t { kPure, kSeeded, kOnce, kCollective, kView };

// Numbered as reprise.v1.Category.
enum class Category : uint8_t {
  kUnspecified,
  kParameter,
  kGradient,
  kOptimizerState,
  kActivation,
  kInput,
  kTemporary,
  kCommunication,
  kUnknown,
  kStatic,  // static memory that the source does not tell apart
  kBeside,  // alive before the step, and no recorded op reads it
};

struct Storage {
  int64_t bytes = 0;
  // With free policy `program`, the program holds the first life until this op
  // has run; kNoOp: until the last reader.
  OpId release_op = kNoOp;
  Category category = Category::kUnknown;
  bool saved_for_backward = false;
  bool pinned = false;  // never recomputed
  bool stays = false;   // never copied to host memory
  std::string name = {};
};

// Ops in base order, from `first` to `last`.
struct ReplayWindow {
  OpId first = 0;
  OpId last = 0;
};

struct Op {
  int64_t time_ns = 0;
  int64_t workspace_bytes = 0;
  int64_t again_ns = 0;     // time of a re-run; 0: that of the first run
  int64_t state_bytes = 0;  // generator state to store if a seeded op re-runs
  int32_t launches = 1;     // ns_per_op of the executor counts this often
  Phase phase = Phase::kForward;
  OpKind kind = OpKind::kPure;
  bool replay_point = true;  // the executor can run ops again right before it
  // It may run again only right before an op of one of these; empty: anywhere.
  // For ops that read what is there only at times, such as gathered parameters.
  std::vector<ReplayWindow> replay_windows = {};
  std::vector<StorageId> reads = {};
  std::vector<StorageId> writes = {};
  std::vector<StorageId> mutates = {};
  std::string name = {};
  std::string module = {};
};

// Returns the time of a re-run, without the executor's ns_per_op.
constexpr int64_t RerunNs(const Op& op) {
  return op.again_ns > 0 ? op.again_ns : op.time_ns;
}

// Copies between the device and host memory: one engine for each direction,
// first in, first out, beside the ops.
struct Link {
  int64_t out_bytes_per_s = 0;  // device to host
  int64_t in_bytes_per_s = 0;
  int64_t latency_ns = 0;  // of every copy
  int64_t host_bytes = 0;  // room for copies; 0: there are none

  friend bool operator==(const Link&, const Link&) = default;
};

struct StaticPart {
  Category category = Category::kUnknown;
  int64_t bytes = 0;
};

struct StepGraph {
  std::string name = {};
  int64_t static_bytes = 0;
  std::vector<StaticPart> static_parts = {};  // as far as they are told apart
  std::vector<Storage> storages;
  std::vector<Op> ops;
  std::vector<StorageId> required;

  int op_count() const { return static_cast<int>(ops.size()); }
  int storage_count() const { return static_cast<int>(storages.size()); }
};

// Returns whether any op may run again in some places only.
bool HasReplayWindows(const StepGraph& graph);

// Divides bytes among parts, in their order, as far as they go. What the parts
// leave is a last one, of category `rest`. Leaves out what is empty.
std::vector<StaticPart> DivideBytes(int64_t bytes,
                                    std::span<const StaticPart> parts,
                                    Category rest);

// Returns static_bytes by category: the parts, and as unknown what they leave of
// it; kStatic if there are no parts.
std::vector<StaticPart> StaticMemory(const StepGraph& graph);

// Checks a graph. INVALID_ARGUMENT, naming the op or storage, unless: ids are
// in range; every storage has exactly one writer, before all its reads and
// mutations; no list names a storage twice; mutated storages are read; nothing
// is negative; all sums fit in 62 bits; release_op is not before the writer;
// replay windows are ops of the graph, ascending, and do not overlap.
Status Validate(const StepGraph& graph);

}  // namespace reprise::planner
