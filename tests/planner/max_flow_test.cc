// SPDX-License-Identifier: Apache-2.0
#include "planner/bounds/max_flow.h"

#include <gtest/gtest.h>

#include <vector>

#include "planner/model/random.h"

namespace reprise::planner {
namespace {

struct Arc {
  int from, to;
  int64_t capacity;
};

int64_t CutBySides(const std::vector<Arc>& arcs, unsigned source_side) {
  int64_t cut = 0;
  for (const Arc& arc : arcs) {
    if ((source_side >> arc.from & 1) != 0 &&
        (source_side >> arc.to & 1) == 0) {
      cut += arc.capacity;
    }
  }
  return cut;
}

TEST(MaxFlowTest, EqualsTheCheapestOfAllCuts) {
  Random random(1);
  for (int i = 0; i < 500; ++i) {
    const int nodes = 2 + random.Below(7);
    std::vector<Arc> arcs;
    MaxFlow flow(nodes);
    for (int a = random.Below(25); a > 0; --a) {
      arcs.push_back(
          {random.Below(nodes), random.Below(nodes), random.Below(10)});
      flow.AddArc(arcs.back().from, arcs.back().to, arcs.back().capacity);
    }
    flow.Build();

    const int64_t value = flow.Solve(0, 1);

    int64_t cheapest = INT64_MAX;
    for (unsigned side = 0; side < 1u << nodes; ++side) {
      if ((side & 3) == 1)
        cheapest = std::min(cheapest, CutBySides(arcs, side));
    }
    EXPECT_EQ(value, cheapest);
    unsigned side = 0;
    for (int node = 0; node < nodes; ++node) {
      if (flow.OnSourceSide(node)) side |= 1u << node;
    }
    EXPECT_EQ(CutBySides(arcs, side), value);
  }
}

TEST(MaxFlowTest, CapacitiesMayBeSetAgain) {
  MaxFlow flow(3);
  flow.AddArc(0, 2, 5);
  const int arc = flow.AddArc(2, 1, 3);
  flow.Build();
  EXPECT_EQ(flow.Solve(0, 1), 3);

  flow.SetCapacity(arc, 9);

  EXPECT_EQ(flow.Solve(0, 1), 5);
}

TEST(MaxFlowTest, AnInfinitePathIsReportedAsInfinite) {
  MaxFlow flow(3);
  flow.AddArc(0, 2, MaxFlow::kInfinite);
  flow.AddArc(2, 1, MaxFlow::kInfinite);
  flow.Build();

  EXPECT_GE(flow.Solve(0, 1), MaxFlow::kInfinite);
}

TEST(MaxFlowTest, ALongChainNeedsNoStack) {
  constexpr int kNodes = 200'000;
  MaxFlow flow(kNodes);
  for (int node = 0; node + 1 < kNodes; ++node) {
    flow.AddArc(node == 1 ? 0 : node, node + 1, 7);
  }
  flow.AddArc(kNodes - 1, 1, 7);
  flow.Build();

  EXPECT_EQ(flow.Solve(0, 1), 7 + 7);  // the direct arc and the chain
}

}  // namespace
}  // namespace reprise::planner
