// SPDX-License-Identifier: Apache-2.0
#include "tests/planner/lemon_oracle.h"

#include <lemon/list_graph.h>
#include <lemon/preflow.h>

namespace reprise::planner {

int64_t LemonMaxFlow(int nodes, const std::vector<LemonArc>& arcs) {
  lemon::ListDigraph graph;
  std::vector<lemon::ListDigraph::Node> node;
  for (int i = 0; i < nodes; ++i) node.push_back(graph.addNode());
  lemon::ListDigraph::ArcMap<int64_t> capacity(graph);
  for (const LemonArc& arc : arcs) {
    capacity[graph.addArc(node[arc.from], node[arc.to])] = arc.capacity;
  }
  lemon::Preflow<lemon::ListDigraph, lemon::ListDigraph::ArcMap<int64_t>>
      preflow(graph, capacity, node[0], node[1]);
  preflow.runMinCut();
  return preflow.flowValue();
}

}  // namespace reprise::planner
