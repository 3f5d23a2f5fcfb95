// SPDX-License-Identifier: Apache-2.0
//
// The verifier's own reading of a step graph and an executor: versions, uses,
// what may run again. Shares nothing with planner/model/versions.h and
// planner/model/rules.h, so that the two can disagree.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/status.h"
#include "planner/verify/certificate.h"

namespace reprise::verify {

// A value is one version of one storage (certificate.h).
using Value = int32_t;

// Rows of ids of different lengths.
class Lists {
 public:
  void Add(int32_t id) { ids_.push_back(id); }
  void Close() { begin_.push_back(static_cast<int64_t>(ids_.size())); }
  std::span<const int32_t> operator[](size_t row) const {
    return {ids_.data() + begin_[row], ids_.data() + begin_[row + 1]};
  }

 private:
  std::vector<int64_t> begin_ = {0};
  std::vector<int32_t> ids_;
};

struct Facts {
  const planner::StepGraph* graph = nullptr;
  Executor executor;
  int op_count = 0;
  int value_count = 0;

  // By value.
  std::vector<StorageId> storage;
  std::vector<OpId> maker;
  std::vector<uint8_t> may_remake;
  Lists uses;  // ops that read it, ascending; op_count: the end of the step
  // By storage: its first value; one more at the end.
  std::vector<Value> first_value;
  // By op.
  Lists needs, makes;
  std::vector<uint8_t> may_rerun;
  std::vector<int64_t> rerun_ns;
  std::vector<uint8_t> may_trigger;  // re-runs may precede it; one for the end

  int64_t BytesOf(Value v) const { return graph->storages[storage[v]].bytes; }
  // The op up to which the program holds the first life; kNoOp: none.
  OpId HeldUntil(StorageId s) const {
    return executor.program_frees ? graph->storages[s].release_op
                                  : planner::kNoOp;
  }
  // The first op at or after this one before which re-runs may happen;
  // op_count where only the end is left.
  OpId TriggerFrom(OpId at) const;
  // The version of a storage that base order has before `at`; -1: none.
  Value Before(StorageId s, OpId at) const;
};

// INVALID_ARGUMENT where the graph is not one (planner/model/step_graph.h).
StatusOr<Facts> ReadFacts(const planner::StepGraph& graph,
                          const Executor& executor);

}  // namespace reprise::verify
