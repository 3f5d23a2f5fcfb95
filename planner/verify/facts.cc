// SPDX-License-Identifier: Apache-2.0
#include "planner/verify/facts.h"

#include <algorithm>
#include <limits>

#include "base/str_cat.h"

namespace reprise::verify {
namespace {

using planner::Op;
using planner::OpKind;
using planner::Phase;
using planner::StepGraph;

// Limit for all bytes and for all times together, so that sums fit.
constexpr __int128 kMostSum = __int128{1} << 62;

bool KindMayRerun(OpKind kind, const Executor& executor) {
  if (kind == OpKind::kOnce) return false;
  if (kind == OpKind::kSeeded) return executor.seeded_ok;
  if (kind == OpKind::kCollective) return executor.collective_ok;
  return true;
}

Status CheckNumbers(const StepGraph& graph) {
  __int128 bytes = graph.static_bytes, times = 0;
  bool negative = graph.static_bytes < 0;
  for (const planner::Storage& storage : graph.storages) {
    bytes += storage.bytes;
    negative = negative || storage.bytes < 0 ||
               storage.release_op < planner::kNoOp ||
               storage.release_op >= graph.op_count();
  }
  for (const Op& op : graph.ops) {
    bytes += op.workspace_bytes;
    bytes += op.state_bytes;
    times += op.time_ns;
    times += op.again_ns;
    negative = negative || op.workspace_bytes < 0 || op.state_bytes < 0 ||
               op.time_ns < 0 || op.again_ns < 0 || op.launches < 0;
  }
  if (negative || bytes >= kMostSum || times >= kMostSum) {
    return InvalidArgument("graph: a number is negative or too large");
  }
  return OkStatus();
}

// Withdraws may_remake from values that no reader could find: where every place
// in which the maker may run again lies behind the last read. A read is the
// first run of a reader, or one of its re-runs that in turn leaves something to
// be read. Only graphs with windows are looked at.
void WithdrawUnreadable(Facts& facts) {
  const OpId end = facts.op_count;
  // Returns the places before `bound`, and at it, where o may run again; the
  // last of them, or -1.
  const auto last_place = [&](OpId o, OpId bound) {
    for (OpId at = bound; at > o; --at) {
      if (facts.MayRunAgain(o, at)) return at;
      const auto& windows = facts.graph->ops[o].replay_windows;
      if (windows.empty()) continue;
      // Nothing between two windows, or before the first.
      OpId below = -1;
      for (const planner::ReplayWindow& window : windows) {
        if (window.first < at) below = std::min(window.last, at - 1);
      }
      at = below + 1;
    }
    return OpId{-1};
  };
  std::vector<OpId> last_read(facts.value_count, -1);
  for (Value v = 0; v < facts.value_count; ++v) {
    if (!facts.uses[v].empty()) last_read[v] = facts.uses[v].back();
  }
  for (OpId o = end - 1; o >= 0; --o) {
    OpId bound = -1;
    for (const Value v : facts.makes[o]) {
      bound = std::max(bound, last_read[v]);
      if (facts.may_remake[v] != 0 && last_place(o, last_read[v]) < 0) {
        facts.may_remake[v] = 0;
      }
    }
    const OpId again = last_place(o, bound);
    for (const Value v : facts.needs[o]) {
      last_read[v] = std::max(last_read[v], again);
    }
  }
}

}  // namespace

bool Facts::MayRunAgain(OpId o, OpId next) const {
  if (may_rerun[o] == 0 || may_trigger[next] == 0) return false;
  if (!has_windows) return true;
  const auto& windows = graph->ops[o].replay_windows;
  return windows.empty() ||
         std::any_of(windows.begin(), windows.end(),
                     [next](const auto& window) {
                       return window.first <= next && next <= window.last;
                     });
}

OpId Facts::TriggerFrom(OpId at) const {
  while (at < op_count && may_trigger[at] == 0) ++at;
  return at;
}

Value Facts::Before(StorageId s, OpId at) const {
  Value last = -1;
  for (Value v = first_value[s]; v < first_value[s + 1] && maker[v] < at; ++v) {
    last = v;
  }
  return last;
}

StatusOr<Facts> ReadFacts(const StepGraph& graph, const Executor& executor) {
  RETURN_IF_ERROR(CheckNumbers(graph));
  Facts facts;
  facts.graph = &graph;
  facts.executor = executor;
  facts.op_count = graph.op_count();
  const auto storages = static_cast<size_t>(graph.storage_count());
  const auto is_storage = [&](StorageId s) {
    return s >= 0 && static_cast<size_t>(s) < storages;
  };

  // The number of versions of each storage: one, plus one per mutation.
  std::vector<int32_t> versions(storages, 1);
  for (const Op& op : graph.ops) {
    for (const StorageId s : op.mutates) {
      if (!is_storage(s)) return InvalidArgument("graph: no such storage");
      ++versions[s];
    }
  }
  facts.first_value.push_back(0);
  for (size_t s = 0; s < storages; ++s) {
    facts.first_value.push_back(facts.first_value.back() + versions[s]);
    facts.storage.insert(facts.storage.end(), versions[s],
                         static_cast<StorageId>(s));
  }
  facts.value_count = facts.first_value.back();
  facts.maker.assign(facts.value_count, planner::kNoOp);

  // One walk in base order: the latest version of each storage so far.
  std::vector<Value> latest(storages, -1);
  std::vector<OpId> seen(storages, planner::kNoOp);
  std::vector<std::vector<int32_t>> uses(facts.value_count);
  for (OpId o = 0; o < facts.op_count; ++o) {
    const Op& op = graph.ops[o];
    const std::string where = StrCat("graph: op ", o, ": ");
    for (const StorageId s : op.reads) {
      if (!is_storage(s) || latest[s] < 0 || seen[s] == o) {
        return InvalidArgument(where + "reads what is not there, or twice");
      }
      seen[s] = o;
      facts.needs.Add(latest[s]);
      uses[latest[s]].push_back(o);
    }
    for (const StorageId s : op.writes) {
      if (!is_storage(s) || latest[s] >= 0) {
        return InvalidArgument(where + "writes what has a writer");
      }
      latest[s] = facts.first_value[s];
      facts.maker[latest[s]] = o;
      facts.makes.Add(latest[s]);
    }
    for (const StorageId s : op.mutates) {
      if (seen[s] != o || latest[s] < 0 || facts.maker[latest[s]] == o) {
        return InvalidArgument(where + "changes what it does not read");
      }
      facts.maker[++latest[s]] = o;
      facts.makes.Add(latest[s]);
    }
    facts.needs.Close();
    facts.makes.Close();
    const bool again =
        KindMayRerun(op.kind, executor) && executor.max_runs != 1 &&
        (!executor.recompute_in_backward_only || op.phase == Phase::kForward);
    facts.has_windows = facts.has_windows || !op.replay_windows.empty();
    OpId after = 0;
    for (const planner::ReplayWindow& window : op.replay_windows) {
      if (window.first < after || window.last < window.first ||
          window.last >= facts.op_count) {
        return InvalidArgument(where + "has a wrong replay window");
      }
      after = window.last + 1;
    }
    facts.may_rerun.push_back(again);
    facts.may_trigger.push_back(
        op.replay_point &&
        !(executor.recompute_in_backward_only && op.phase != Phase::kBackward));
    // Within the limits, a sum of two such numbers fits
    // (planner/model/rules.h).
    const __int128 launch_ns =
        static_cast<__int128>(std::max<int64_t>(0, executor.ns_per_op)) *
        op.launches;
    facts.rerun_ns.push_back(
        (op.again_ns > 0 ? op.again_ns : op.time_ns) +
        static_cast<int64_t>(std::min<__int128>(launch_ns, int64_t{1} << 61)));
  }
  facts.may_trigger.push_back(!executor.recompute_in_backward_only);
  for (size_t s = 0; s < storages; ++s) {
    if (latest[s] != facts.first_value[s + 1] - 1) {
      return InvalidArgument(StrCat("graph: storage ", s, " has no writer"));
    }
  }
  for (const StorageId s : graph.required) {
    if (!is_storage(s)) return InvalidArgument("graph: no such storage");
    const Value last = facts.first_value[s + 1] - 1;
    if (uses[last].empty() || uses[last].back() != facts.op_count) {
      uses[last].push_back(facts.op_count);
    }
  }
  for (Value v = 0; v < facts.value_count; ++v) {
    for (const OpId use : uses[v]) facts.uses.Add(use);
    facts.uses.Close();
    facts.may_remake.push_back(facts.may_rerun[facts.maker[v]] != 0 &&
                               !graph.storages[facts.storage[v]].pinned);
  }
  if (facts.has_windows) WithdrawUnreadable(facts);
  return facts;
}

}  // namespace reprise::verify
