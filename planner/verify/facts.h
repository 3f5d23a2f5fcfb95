// SPDX-License-Identifier: Apache-2.0
//
// The verifier's own reading of a step graph and an executor: versions, uses,
// and what may run again. Shares no code with planner/model/versions.h and
// planner/model/rules.h, so that an error in one of them shows.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/status.h"
#include "planner/model/certificate.h"

namespace reprise::verify {

// A value is one version of one storage (certificate.h).
using Value = int32_t;

// Lists of ids of different lengths.
class Lists {
 public:
  void Add(int32_t id) { ids_.push_back(id); }
  // Ends the current list.
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
  Lists uses;  // ops that read it, ascending; op_count: the end
  // By storage: its first value; one more entry at the end.
  std::vector<Value> first_value;
  // By op.
  Lists needs, makes;
  std::vector<uint8_t> may_rerun;
  std::vector<int64_t> rerun_ns;
  std::vector<uint8_t> may_trigger;  // re-runs may precede it; one for the end
  bool has_windows = false;          // some op may run again in places only

  int64_t BytesOf(Value v) const { return graph->storages[storage[v]].bytes; }
  // Returns the op up to which the program holds the first life; kNoOp: none.
  OpId HeldUntil(StorageId s) const {
    return executor.program_frees ? graph->storages[s].release_op
                                  : planner::kNoOp;
  }
  // Returns the first op at or after `at` before which re-runs may run;
  // op_count if only the end is left.
  OpId TriggerFrom(OpId at) const;
  // Returns whether op `o` may run again right before the first run of `next`.
  bool MayRunAgain(OpId o, OpId next) const;
  // Returns the version of a storage before `at` in base order; -1: none.
  Value Before(StorageId s, OpId at) const;
};

// INVALID_ARGUMENT if the graph is invalid (planner/model/step_graph.h).
StatusOr<Facts> ReadFacts(const planner::StepGraph& graph,
                          const Executor& executor);

}  // namespace reprise::verify
