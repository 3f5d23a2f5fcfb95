// SPDX-License-Identifier: Apache-2.0
#include "planner/model/rules.h"

#include <algorithm>

namespace reprise::planner {
namespace {

// Returns whether an op's kind allows this executor to run it again.
bool KindAllows(const Op& op, const Capabilities& capabilities) {
  switch (op.kind) {
    case OpKind::kPure:
    case OpKind::kView:
      return true;
    case OpKind::kSeeded:
      return capabilities.seeded_ok;
    case OpKind::kCollective:
      return capabilities.collective_ok;
    case OpKind::kOnce:
      return false;
  }
  return false;
}

}  // namespace

Capabilities WithExecution(Capabilities capabilities) {
  if (capabilities.execution == Execution::kFree) return capabilities;
  capabilities.recompute_in_backward_only = true;
  if (capabilities.execution == Execution::kNested) return capabilities;
  capabilities.lazy_region = true;
  if (capabilities.max_runs == 0 || capabilities.max_runs > 2) {
    capabilities.max_runs = 2;
  }
  return capabilities;
}

Rules MakeRules(const StepGraph& graph, const Versions& versions,
                const Capabilities& given) {
  const Capabilities capabilities = WithExecution(given);
  Rules rules;
  const bool backward_only = capabilities.recompute_in_backward_only;
  for (const Op& op : graph.ops) {
    rules.may_rerun.push_back(KindAllows(op, capabilities) &&
                              capabilities.max_runs != 1 &&
                              !(backward_only && op.phase != Phase::kForward));
    rules.may_trigger.push_back(
        op.replay_point && (!backward_only || op.phase == Phase::kBackward));
    // Neither is above 2^62, so their sum fits.
    const __int128 launch_ns =
        static_cast<__int128>(std::max<int64_t>(0, capabilities.ns_per_op)) *
        op.launches;
    rules.rerun_ns.push_back(
        RerunNs(op) +
        static_cast<int64_t>(std::min<__int128>(launch_ns, int64_t{1} << 61)));
  }
  rules.may_trigger.push_back(!backward_only);
  for (ValueId v = 0; v < versions.value_count(); ++v) {
    rules.may_remake.push_back(rules.may_rerun[versions.maker[v]] &&
                               !graph.storages[versions.storage[v]].pinned);
  }
  for (const Storage& storage : graph.storages) {
    rules.held_until.push_back(capabilities.free_policy == FreePolicy::kProgram
                                   ? storage.release_op
                                   : kNoOp);
  }
  return rules;
}

}  // namespace reprise::planner
