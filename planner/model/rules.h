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
  // pinned storages, even if their op may run again for another output, and for
  // those that nothing can read any more when their op may run again.
  std::vector<uint8_t> may_remake;
  // By op: re-runs may come just before it. It has to be a replay point and,
  // with `recompute_in_backward_only`, a backward op. One more entry for the
  // end of the step.
  std::vector<uint8_t> may_trigger;
  // By op: the last one up to it that may_trigger; kNoOp if there is none. One
  // more entry for the end of the step.
  std::vector<OpId> last_trigger;
  // By op: where it may run again, if anywhere is too much; no entries at all if
  // no op has such windows.
  std::vector<std::vector<ReplayWindow>> windows;
  // By storage: its first life may not end before this op has run; kNoOp if the
  // free policy does not say.
  std::vector<OpId> held_until;
  // By op: time of a re-run.
  std::vector<int64_t> rerun_ns;

  // Returns whether an op may run again right before another one, which is
  // op_count for the end of the step.
  bool MayRunAgain(OpId op, OpId before) const {
    return may_rerun[op] != 0 && may_trigger[before] != 0 &&
           IsInWindow(op, before);
  }
  // Returns the last op up to `limit` right before which an op may run again;
  // kNoOp if there is none.
  OpId LastRerun(OpId op, OpId limit) const;
  // Returns whether the windows of an op allow a re-run right before another.
  bool IsInWindow(OpId op, OpId before) const;
};

// Builds the rules of a valid graph for these capabilities.
Rules MakeRules(const StepGraph& graph, const Versions& versions,
                const Capabilities& capabilities);

}  // namespace reprise::planner
