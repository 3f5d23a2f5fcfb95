// SPDX-License-Identifier: Apache-2.0
//
// Random step graphs that are hard to fit: their ops read recent and distant
// values.
#pragma once

#include <algorithm>
#include <set>

#include "planner/model/random.h"
#include "planner/model/step_graph.h"

namespace reprise::planner {

// Ops that read recent and distant values, with several outputs, workspaces and
// empty storages; some are `once`, and some outputs are required.
inline StepGraph Tangle(Random& random, int ops) {
  StepGraph graph;
  graph.static_bytes = random.Below(50);
  for (OpId o = 0; o < ops; ++o) {
    Op op{.time_ns = 1 + random.Below(9), .workspace_bytes = random.Below(30)};
    if (random.Percent(5)) op.kind = OpKind::kOnce;
    std::set<StorageId> reads;
    const int count = graph.storage_count();
    for (int i = random.Below(4); count > 0 && i > 0; --i) {
      const int reach = random.Percent(80) ? std::min(count, 10) : count;
      reads.insert(count - 1 - random.Below(reach));
    }
    op.reads.assign(reads.begin(), reads.end());
    for (int i = 1 + static_cast<int>(random.Percent(20)); i > 0; --i) {
      op.writes.push_back(graph.storage_count());
      graph.storages.push_back(
          {.bytes = random.Percent(5) ? 0 : 1 + random.Below(100)});
      if (random.Percent(3)) graph.required.push_back(op.writes.back());
    }
    graph.ops.push_back(op);
  }
  return graph;
}

// Like Tangle, but every op may run again: otherwise the outputs of `once` ops
// might have to stay for the whole step.
inline StepGraph PureTangle(Random& random, int ops) {
  StepGraph graph = Tangle(random, ops);
  for (Op& op : graph.ops) op.kind = OpKind::kPure;
  return graph;
}

}  // namespace reprise::planner
