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

// Forbids to recompute values that nothing could read afterwards.
//
// `latest` says by value where it is read last: by the first run of a reader,
// or by a re-run, which must be in a window of the reader and leave something
// that is read no earlier. Readers come after the op that makes a value, so one
// walk from the last op to the first finds it. Whoever recomputes a value later
// than that can leave it out, and is no slower and no larger for it: no optimum
// is lost. O(arities + windows).
void ForbidUseless(const StepGraph& graph, const Versions& versions,
                   Rules& rules) {
  std::vector<OpId> latest(versions.value_count(), kNoOp);
  for (const StorageId s : graph.required) {
    latest[versions.Last(s)] = graph.op_count();
  }
  for (OpId o = graph.op_count(); o-- > 0;) {
    OpId limit = kNoOp;
    for (const ValueId v : versions.Make(o)) limit = std::max(limit, latest[v]);
    const OpId rerun = limit == kNoOp ? kNoOp : rules.LastRerun(o, limit);
    for (const ValueId v : versions.Make(o)) {
      const bool is_read =
          latest[v] != kNoOp && rules.LastRerun(o, latest[v]) != kNoOp;
      rules.may_remake[v] = rules.may_remake[v] != 0 && is_read;
    }
    for (const ValueId v : versions.Need(o)) {
      latest[v] = std::max({latest[v], o, rerun});
    }
  }
}

}  // namespace

OpId Rules::LastRerun(OpId op, OpId limit) const {
  if (may_rerun[op] == 0) return kNoOp;
  const OpId at = last_trigger[limit];
  if (windows.empty() || windows[op].empty()) return at > op ? at : kNoOp;
  for (size_t w = windows[op].size(); w-- > 0;) {
    const ReplayWindow& window = windows[op][w];
    if (window.first > limit) continue;
    const OpId inside = last_trigger[std::min(window.last, limit)];
    if (inside >= window.first && inside > op) return inside;
  }
  return kNoOp;
}

bool Rules::IsInWindow(OpId op, OpId before) const {
  if (windows.empty() || windows[op].empty()) return true;
  return std::any_of(windows[op].begin(), windows[op].end(),
                     [before](const ReplayWindow& window) {
                       return window.first <= before && before <= window.last;
                     });
}

Capabilities WithExecution(Capabilities capabilities) {
  if (capabilities.execution == Execution::kFree) return capabilities;
  capabilities.recompute_in_backward_only = true;
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
  const bool windows = HasReplayWindows(graph);
  // What it runs again runs wherever it is read.
  const bool once = capabilities.execution == Execution::kOnce;
  for (const Op& op : graph.ops) {
    if (windows) rules.windows.push_back(op.replay_windows);
    rules.may_rerun.push_back(KindAllows(op, capabilities) &&
                              !(once && !op.replay_windows.empty()) &&
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
  OpId trigger = kNoOp;
  for (OpId o = 0; o <= graph.op_count(); ++o) {
    if (rules.may_trigger[o] != 0) trigger = o;
    rules.last_trigger.push_back(trigger);
  }
  for (ValueId v = 0; v < versions.value_count(); ++v) {
    rules.may_remake.push_back(rules.may_rerun[versions.maker[v]] &&
                               !graph.storages[versions.storage[v]].pinned);
  }
  for (const Storage& storage : graph.storages) {
    rules.held_until.push_back(capabilities.free_policy == FreePolicy::kProgram
                                   ? storage.release_op
                                   : kNoOp);
  }
  if (windows) ForbidUseless(graph, versions, rules);
  return rules;
}

}  // namespace reprise::planner
