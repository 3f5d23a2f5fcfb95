// SPDX-License-Identifier: Apache-2.0
//
// A problem: one step graph under one set of capabilities, with the tables that
// bounds and searches use repeatedly. Built once per request.
//
// Every value has *uses*: its base readers in base order and, for the last
// version of a required storage, the end of the step (position op_count). The
// stretches between its maker and its uses are its *gaps*; the stretch after
// the last use is its *tail*. There is one flag per gap and one per tail (see
// flags.h):
//
//   maker      use 1        use 2
//     |--gap 0--|---gap 1----|--tail-----
//      flag_begin[v] + 0, + 1, + 2
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "planner/model/rules.h"

namespace reprise::planner {

struct Problem {
  const StepGraph* graph = nullptr;
  Capabilities capabilities;
  Versions versions;
  Rules rules;

  int op_count = 0;
  int64_t static_bytes = 0;
  std::vector<int64_t> bytes;        // by storage
  std::vector<int64_t> workspace;    // by op
  std::vector<int64_t> time_ns;      // by op, first run
  std::vector<uint8_t> required;     // by storage
  std::vector<ValueId> end_need;     // required values
  std::vector<int32_t> write_begin;  // CSR by op: storages it writes
  std::vector<StorageId> writes;
  std::vector<int32_t> released_begin;  // CSR by op: storages whose first life
  std::vector<StorageId> released;      // ends no earlier than this op
  OpId first_backward = 0;              // op_count if there is none

  // Uses of values, CSR; the last may be op_count (the end).
  std::vector<int32_t> use_begin;
  std::vector<OpId> uses;
  // Flags: value v owns flag_begin[v] .. flag_begin[v + 1] (uses + 1 of them).
  std::vector<int32_t> flag_begin;
  std::vector<int32_t> need_flag;   // parallel to versions.need: gap after it
  std::vector<ValueId> flag_value;  // by flag
  std::vector<OpId> flag_from;      // by flag: maker or use that opens the gap
  std::vector<OpId> flag_to;        // by flag: use that closes it; tail:
                                    // op_count + 1
  std::vector<uint8_t> flag_fixed;  // by flag: must stay `save`

  // The base order under the free policy.
  Evaluation base;
  std::vector<int64_t> base_bytes;  // by op: bytes while it runs

  int flag_count() const { return static_cast<int>(flag_value.size()); }
  std::span<const OpId> Uses(ValueId v) const {
    return {uses.data() + use_begin[v], uses.data() + use_begin[v + 1]};
  }
  std::span<const StorageId> Writes(OpId o) const {
    return {writes.data() + write_begin[o], writes.data() + write_begin[o + 1]};
  }
  int64_t BytesOf(ValueId v) const { return bytes[versions.storage[v]]; }
  // Returns whether a flag belongs to a tail, not to a gap.
  bool IsTail(int32_t flag) const { return flag_to[flag] > op_count; }
  // Returns the flag of the gap or tail of a value that spans a base position.
  int32_t FlagAt(ValueId v, OpId at) const;
};

// Builds the problem. The graph must be valid and outlive the problem.
Problem MakeProblem(const StepGraph& graph, const Capabilities& capabilities);

// Evaluates execs, with the frees of the problem's policy.
StatusOr<Evaluation> EvaluateExecs(const Problem& problem,
                                   const std::vector<OpId>& execs);

// Returns whether every storage has one version, the program holds nothing
// beyond its last reader, and no op that may run again stores generator state.
bool IsPlain(const Problem& problem);

}  // namespace reprise::planner
