// SPDX-License-Identifier: Apache-2.0
#include "tests/planner/random_graph.h"

#include <algorithm>

namespace reprise::planner {
namespace {

OpKind RandomKind(Random& random) {
  const int kind = random.Below(20);
  if (kind == 0) return OpKind::kOnce;
  if (kind == 1) return OpKind::kCollective;
  if (kind <= 3) return OpKind::kSeeded;
  return OpKind::kPure;
}

}  // namespace

StepGraph RandomGraph(Random& random, int most_ops) {
  StepGraph graph;
  const int op_count = 3 + random.Below(most_ops - 2);
  const int backward = random.Below(op_count + 1);
  const bool versions = random.Percent(60);
  graph.static_bytes = random.Below(3);
  for (OpId o = 0; o < op_count; ++o) {
    Op op{.time_ns = random.Below(6),
          .workspace_bytes = random.Percent(20) ? random.Below(4) : 0,
          .phase = o < backward ? Phase::kForward : Phase::kBackward,
          .kind = RandomKind(random)};
    if (random.Percent(3)) op.phase = Phase::kBackward;
    if (op.kind == OpKind::kSeeded) op.state_bytes = random.Below(3);
    if ((o + op.time_ns) % 4 == 0) op.again_ns = 1 + op.time_ns / 2;
    for (StorageId s = 0; s < graph.storage_count(); ++s) {
      const bool near = s + 3 >= graph.storage_count();
      if (!random.Percent(near ? 40 : 20)) continue;
      op.reads.push_back(s);
      if (versions && random.Percent(20)) op.mutates.push_back(s);
    }
    const int writes = random.Percent(15) ? 2 : random.Percent(90) ? 1 : 0;
    for (int i = 0; i < writes && graph.storage_count() < 12; ++i) {
      op.writes.push_back(graph.storage_count());
      graph.storages.push_back({.bytes = random.Below(8)});
    }
    graph.ops.push_back(op);
  }
  for (StorageId s = 0; s < graph.storage_count(); ++s) {
    if (random.Percent(15)) graph.required.push_back(s);
    if (random.Percent(5)) graph.storages[s].pinned = true;
    if (!random.Percent(20)) continue;
    OpId writer = 0;
    while (std::count(graph.ops[writer].writes.begin(),
                      graph.ops[writer].writes.end(), s) == 0) {
      ++writer;
    }
    graph.storages[s].release_op =
        writer + random.Below(graph.op_count() - writer);
  }
  return graph;
}

void LimitReplayPoints(StepGraph& graph, Random& random) {
  const int share = 20 + random.Below(60);
  for (Op& op : graph.ops) op.replay_point = !random.Percent(share);
}

void LimitReplays(StepGraph& graph, Random& random) {
  for (Op& op : graph.ops) {
    if (random.Percent(40)) continue;
    const int most = 1 + random.Below(2);
    OpId next = random.Below(graph.op_count());
    for (int i = 0; i < most && next < graph.op_count(); ++i) {
      const OpId last = next + random.Below(graph.op_count() - next);
      op.replay_windows.push_back({.first = next, .last = last});
      next = last + 1 + random.Below(3);
    }
  }
}

Capabilities TapeCapabilities() {
  return {.max_runs = 0,
          .recompute_in_backward_only = true,
          .seeded_ok = true,
          .collective_ok = false,
          .duplicate_outputs = true,
          .free_policy = FreePolicy::kProgram,
          .ns_per_op = 1};
}

Capabilities RandomCapabilities(Random& random) {
  return {.max_runs = random.Percent(30) ? 1 + random.Below(3) : 0,
          .recompute_in_backward_only = random.Percent(30),
          .seeded_ok = random.Percent(50),
          .collective_ok = random.Percent(50),
          .duplicate_outputs = random.Percent(50),
          .free_policy =
              random.Percent(50) ? FreePolicy::kProgram : FreePolicy::kEager,
          .ns_per_op = random.Below(3)};
}

}  // namespace reprise::planner
