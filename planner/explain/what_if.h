// SPDX-License-Identifier: Apache-2.0
//
// Changes one decision in a finished plan and keeps everything else.
//
//   save instead of recompute   the re-runs that recompute it are removed, and
//                               every re-run that only they read
//   recompute instead of save   it is discarded between the two uses around the
//                               peak, and recomputed with its absent inputs
//                               just before the later one
//
// The result goes through the free policy and the evaluator like any plan. It
// answers "what does this decision cost", not "what would be best": there is no
// new search. O(schedule) each.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "planner/explain/explain.h"
#include "planner/model/problem.h"

namespace reprise::planner {

class Counterfactual {
 public:
  Counterfactual(const Problem& problem, std::span<const Entry> schedule,
                 const Evaluation& evaluation);

  // Nothing if the storage was not recomputed, or if the change makes no valid
  // schedule (its version is destroyed in between).
  std::optional<WhatIf> IfKept(StorageId storage) const;
  // Nothing if it may not be recomputed, or is not kept across the peak.
  std::optional<WhatIf> IfRecomputed(StorageId storage) const;

 private:
  // Evaluates a changed list of execs and compares it with the plan; nothing if
  // it is invalid.
  std::optional<WhatIf> Judge(const std::vector<OpId>& execs,
                              Decision decision) const;
  // Returns whether it is present while the exec at this position runs.
  bool IsPresent(StorageId storage, int32_t exec) const;
  // Appends the ops that recompute `value` at this position, inputs first.
  // Returns false if that is not allowed or takes too many ops.
  bool Make(ValueId value, int32_t exec, std::vector<uint8_t>& made,
            std::vector<OpId>& ops) const;

  const Problem& problem_;
  const Evaluation& evaluation_;
  std::vector<OpId> execs_;
  int32_t peak_exec_ = 0;
  // Lives by storage, CSR, in execs: [born, last].
  std::vector<int32_t> life_begin_;
  std::vector<std::pair<int32_t, int32_t>> lives_;
};

}  // namespace reprise::planner
