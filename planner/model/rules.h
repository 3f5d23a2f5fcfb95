// SPDX-License-Identifier: Apache-2.0
//
// What the capabilities of an executor mean for one step graph: which ops may
// run again and when, and which values may be recomputed. Evaluator, bounds and
// searches all use these rules, so they cannot disagree.
#pragma once

#include <cstdint>
#include <vector>

#include "planner/model/evaluate.h"
#include "planner/model/versions.h"

namespace reprise::planner {

struct Rules {
  // By op: it may run more than once.
  std::vector<uint8_t> may_rerun;
  // By value: it may be recomputed after it was lost. False for values of
  // pinned storages, even if their op may run again for another output.
  std::vector<uint8_t> may_remake;
  // By op: re-runs may come just before it. It has to be a replay point and,
  // with `recompute_in_backward_only`, a backward op. One more entry for the
  // end of the step.
  std::vector<uint8_t> may_trigger;
  // By storage: its first life may not end before this op has run; kNoOp if the
  // free policy does not say.
  std::vector<OpId> held_until;
  // By op: time of a re-run.
  std::vector<int64_t> rerun_ns;
};

// Builds the rules of a valid graph for these capabilities.
Rules MakeRules(const StepGraph& graph, const Versions& versions,
                const Capabilities& capabilities);

}  // namespace reprise::planner
