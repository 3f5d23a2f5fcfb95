// SPDX-License-Identifier: Apache-2.0
//
// What the capabilities of an executor mean for one step graph: which op may
// run again and when, which value may be made again. Evaluator, bounds and
// searches all ask here, so that they cannot disagree.
#pragma once

#include <cstdint>
#include <vector>

#include "planner/model/evaluate.h"
#include "planner/model/versions.h"

namespace reprise::planner {

struct Rules {
  // By op: some later exec of it is allowed.
  std::vector<uint8_t> may_rerun;
  // By value: it may be made again after it was lost. False for values of
  // pinned storages even where their op may run again for another output.
  std::vector<uint8_t> may_remake;
  // By op: it may be preceded by re-runs (`recompute_in_backward_only`: the
  // backward ops). One more entry for the end of the step.
  std::vector<uint8_t> may_trigger;
  // By storage: its first life may not end before this op has run; kNoOp
  // where the free policy says nothing.
  std::vector<OpId> held_until;
  // Time of a re-run, by op.
  std::vector<int64_t> rerun_ns;
};

Rules MakeRules(const StepGraph& graph, const Versions& versions,
                const Capabilities& capabilities);

}  // namespace reprise::planner
