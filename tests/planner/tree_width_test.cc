// SPDX-License-Identifier: Apache-2.0
#include "planner/tree_width.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <numeric>
#include <set>
#include <utility>
#include <vector>

#include "planner/construct.h"
#include "planner/evaluate.h"
#include "planner/random.h"
#include "planner/screen.h"
#include "tests/planner/chain_step.h"
#include "tests/planner/tangle.h"

namespace reprise::planner {
namespace {

const std::function<bool()> kNever;
constexpr int64_t kMany = int64_t{1} << 60;

using Edges = std::vector<std::pair<int32_t, int32_t>>;

Edges PathOf(int vertices) {
  Edges edges;
  for (int v = 1; v < vertices; ++v) edges.emplace_back(v - 1, v);
  return edges;
}

Edges GridOf(int rows, int columns) {
  Edges edges;
  for (int v = 0; v < rows * columns; ++v) {
    if (v % columns > 0) edges.emplace_back(v - 1, v);
    if (v >= columns) edges.emplace_back(v - columns, v);
  }
  return edges;
}

Edges RandomEdges(Random& random, int vertices, int count) {
  Edges edges;
  for (int i = 0; i < count; ++i) {
    edges.emplace_back(random.Below(vertices), random.Below(vertices));
  }
  return edges;
}

// Every edge in a bag; every vertex at its home; the bags of a vertex
// connected: all but its home hang on a bag that holds it too.
void ExpectDecomposes(const TreeDecomposition& tree, int vertices,
                      const Edges& edges) {
  std::vector<std::set<int32_t>> bags_of(vertices);
  for (size_t b = 0; b < tree.bags.size(); ++b) {
    ASSERT_LE(static_cast<int>(tree.bags[b].size()), tree.width + 1);
    for (const int32_t v : tree.bags[b]) {
      bags_of[v].insert(static_cast<int32_t>(b));
    }
  }
  for (const auto& [a, b] : edges) {
    const bool together =
        std::any_of(bags_of[a].begin(), bags_of[a].end(),
                    [&](int32_t bag) { return bags_of[b].count(bag) != 0; });
    ASSERT_TRUE(together) << a << " and " << b;
  }
  for (int v = 0; v < vertices; ++v) {
    ASSERT_EQ(bags_of[v].count(tree.home[v]), 1u) << v;
    for (const int32_t b : bags_of[v]) {
      if (b == tree.home[v]) continue;
      ASSERT_EQ(bags_of[v].count(tree.parent[b]), 1u) << v;
    }
  }
}

TEST(TreeDecompositionTest, HoldsEveryEdgeInConnectedBags) {
  Random random(1);
  for (int i = 0; i < 300; ++i) {
    const int vertices = 1 + random.Below(60);
    const Edges edges = RandomEdges(random, vertices, random.Below(150));
    // With enough ticks, with some, and with next to none.
    const int64_t ticks = i % 3 == 0 ? kMany : i % 3 == 1 ? 500 : 1;

    const TreeDecomposition tree = Decompose(vertices, edges, ticks);

    ExpectDecomposes(tree, vertices, edges);
  }
}

TEST(TreeDecompositionTest, FindsTheWidthOfPathsCyclesCliquesAndGrids) {
  EXPECT_EQ(Decompose(1, {}, kMany).width, 0);
  EXPECT_EQ(Decompose(100, PathOf(100), kMany).width, 1);
  Edges cycle = PathOf(100);
  cycle.emplace_back(99, 0);
  EXPECT_EQ(Decompose(100, cycle, kMany).width, 2);
  Edges clique;
  for (int a = 0; a < 8; ++a) {
    for (int b = 0; b < a; ++b) clique.emplace_back(a, b);
  }
  EXPECT_EQ(Decompose(8, clique, kMany).width, 7);
  EXPECT_EQ(Decompose(4 * 50, GridOf(4, 50), kMany).width, 4);
}

TEST(TreeDecompositionTest, SeparatorsLeaveHalvesWithoutAnEdgeBetweenThem) {
  Random random(2);
  for (int i = 0; i < 200; ++i) {
    const int vertices = 1 + random.Below(80);
    const Edges edges = RandomEdges(random, vertices, random.Below(120));

    const Parts parts = TakeApart(Decompose(vertices, edges, kMany));

    std::vector<int> size(parts.parent.size(), 0);
    for (int v = 0; v < vertices; ++v) {
      for (int32_t p = parts.of[v]; p >= 0; p = parts.parent[p]) ++size[p];
    }
    for (size_t p = 0; p < size.size(); ++p) {
      if (parts.parent[p] < 0) continue;
      EXPECT_LE(2 * size[p], size[parts.parent[p]]);
    }
    for (const auto& [a, b] : edges) {
      // One of them separates a part that holds the other.
      const int32_t upper = parts.depth[parts.of[a]] < parts.depth[parts.of[b]]
                                ? parts.of[a]
                                : parts.of[b];
      int32_t lower = upper == parts.of[a] ? parts.of[b] : parts.of[a];
      while (parts.depth[lower] > parts.depth[upper]) {
        lower = parts.parent[lower];
      }
      EXPECT_EQ(lower, upper) << a << " and " << b;
    }
  }
}

TEST(TreeDecompositionTest, TakesNearLinearTime) {
  const int vertices = 20'000;
  Edges edges = PathOf(vertices);
  for (int v = 0; v + 7 < vertices; v += 3) edges.emplace_back(v, v + 7);

  const TreeDecomposition tree = Decompose(vertices, edges, 20'000'000);

  EXPECT_LT(tree.width, 12);
  EXPECT_LT(tree.ticks, 500 * vertices);
}

StatusOr<Evaluation> Replay(const Problem& problem,
                            const std::vector<OpId>& execs) {
  return Evaluate(
      *problem.graph,
      WithFrees(*problem.graph, execs, problem.capabilities.free_policy),
      problem.capabilities);
}

std::vector<OpId> TakenApart(const Problem& problem,
                             const TreeWidthOptions& options) {
  Effort effort(kMany, kNever);
  const Parts parts = PartsOf(problem, 20'000'000, effort);
  return TreeWidthExecs(problem, parts, options, effort);
}

TEST(TreeWidthTest, ChainsNeedLogarithmicallyManyValues) {
  for (const int layers : {16, 64, 256, 1024}) {
    const StepGraph graph = UniformChain(layers);
    const Problem problem = MakeProblem(graph, {});

    const auto execs =
        TakenApart(problem, {.budget_bytes = 0, .fits_percent = 0});

    const auto evaluation = Replay(problem, execs);
    ASSERT_TRUE(evaluation.ok()) << evaluation.status().message();
    // Two values per halving, and those that an op reads and writes.
    int halvings = 0;
    while ((1 << halvings) < 2 * layers) ++halvings;
    EXPECT_LE(evaluation->peak_bytes, 10 * (2 * halvings + 4))
        << layers << " layers";
    EXPECT_LE(execs.size(), static_cast<size_t>(2 * layers * (halvings + 2)))
        << layers << " layers";
  }
}

TEST(TreeWidthTest, RunsWhatFitsAsItIs) {
  const StepGraph graph = UniformChain(64);
  const Problem problem = MakeProblem(graph, {});
  std::vector<OpId> base(graph.op_count());
  std::iota(base.begin(), base.end(), 0);

  const auto all =
      TakenApart(problem, {.budget_bytes = problem.base.peak_bytes});
  const auto half =
      TakenApart(problem, {.budget_bytes = problem.base.peak_bytes * 6 / 10});

  EXPECT_EQ(all, base);
  const auto evaluation = Replay(problem, half);
  ASSERT_TRUE(evaluation.ok()) << evaluation.status().message();
  EXPECT_LE(evaluation->peak_bytes, problem.base.peak_bytes * 6 / 10);
  // No more than one forward again.
  EXPECT_LE(evaluation->time_ns, problem.base.time_ns + 64 * 100);
}

TEST(TreeWidthTest, SchedulesOfRandomGraphsAreValid) {
  Random random(3);
  int found = 0;
  for (int i = 0; i < 150; ++i) {
    const StepGraph graph =
        i % 3 == 0 ? Tangle(random, 40) : PureTangle(random, 20 + i % 60);
    const Problem problem = MakeProblem(graph, {});
    ASSERT_TRUE(TreeWidthApplies(problem));
    const int64_t budget =
        problem.base.peak_bytes * (50 + random.Below(60)) / 100;

    const auto execs = TakenApart(
        problem, {.budget_bytes = budget,
                  .fits_percent = static_cast<int>(random.Below(3)) * 50});

    if (execs.empty()) continue;
    ++found;
    const auto evaluation = Replay(problem, execs);
    ASSERT_TRUE(evaluation.ok())
        << "graph " << i << ": " << evaluation.status().message();
  }
  EXPECT_GE(found, 120);
}

TEST(TreeWidthTest, RefusesVersionsAndExecutorsWithOneReRun) {
  StepGraph graph = UniformChain(4);
  EXPECT_TRUE(TreeWidthApplies(MakeProblem(graph, {})));
  EXPECT_FALSE(TreeWidthApplies(MakeProblem(graph, {.max_runs = 2})));
  EXPECT_FALSE(
      TreeWidthApplies(MakeProblem(graph, {.duplicate_outputs = true})));

  graph.ops[1].mutates = {0};

  EXPECT_FALSE(TreeWidthApplies(MakeProblem(graph, {})));
}

TEST(TreeWidthTest, EndsWithItsTicks) {
  Random random(4);
  const StepGraph graph = PureTangle(random, 2000);
  const Problem problem = MakeProblem(graph, {});
  Effort effort(kMany, kNever);

  const Parts parts = PartsOf(problem, 1'000'000, effort);
  const auto execs = TreeWidthExecs(problem, parts,
                                    {.budget_bytes = 1,
                                     .fits_percent = 0,
                                     .most_execs_per_op = 1'000'000,
                                     .most_ticks = 1'000'000},
                                    effort);

  EXPECT_TRUE(execs.empty());
  EXPECT_LT(effort.ticks(), 10'000'000);
}

}  // namespace
}  // namespace reprise::planner
