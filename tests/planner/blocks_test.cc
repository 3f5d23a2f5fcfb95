// SPDX-License-Identifier: Apache-2.0
#include "planner/construct/blocks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "bench/generate/generate.h"
#include "planner/model/random.h"
#include "tests/planner/random_graph.h"

namespace reprise::planner {
namespace {

StepGraph Generated(GraphKind kind, int ops) {
  return *Generate({.kind = kind, .ops = ops});
}

// Returns the number of modules "layers.N".
int LayersOf(const StepGraph& graph) {
  int layers = 0;
  while (std::any_of(graph.ops.begin(), graph.ops.end(), [&](const Op& op) {
    return op.module == "layers." + std::to_string(layers) ||
           op.module.rfind("layers." + std::to_string(layers) + ".", 0) == 0;
  })) {
    ++layers;
  }
  return layers;
}

// A chain of blocks "a b b c", each reading the op before.
StepGraph BlocksOfFour(int blocks) {
  StepGraph graph;
  const std::string kinds = "abbc";
  for (int i = 0; i < 4 * blocks; ++i) {
    graph.storages.push_back({.bytes = 8 + i % 4 / 3});
    graph.ops.push_back(
        {.time_ns = 100, .writes = {i}, .name = kinds.substr(i % 4, 1)});
    if (i > 0) graph.ops.back().reads = {i - 1};
  }
  return graph;
}

std::vector<BlockRun> RunsOf(const StepGraph& graph) {
  return FindBlocks(MakeProblem(graph, {})).runs;
}

TEST(FindBlocksTest, EveryLayerOfATransformerIsAnInstanceForwardAndBackward) {
  for (const GraphKind kind : {GraphKind::kTransformer, GraphKind::kMoe}) {
    for (const int ops : {500, 3000}) {
      const StepGraph graph = Generated(kind, ops);
      const int layers = LayersOf(graph);
      const Problem problem = MakeProblem(graph, {});

      const Blocks blocks = FindBlocks(problem);

      ASSERT_GE(blocks.runs.size(), 2u);
      EXPECT_EQ(blocks.runs[0].count, layers);
      EXPECT_LE(blocks.runs[0].end(), problem.first_backward);
      EXPECT_EQ(graph.ops[blocks.runs[0].begin].module, "layers.0");
      // The backward of the first or the last layer may differ: in the ops that
      // sum its gradients.
      EXPECT_EQ(blocks.runs[1].mirrors, 0);
      EXPECT_GE(blocks.runs[1].count, layers - 1);
      EXPECT_GE(blocks.runs[1].begin, problem.first_backward);
    }
  }
}

TEST(FindBlocksTest, EveryStageOfAResNetIsARunOfItsBottlenecksButTheFirst) {
  const StepGraph graph = Generated(GraphKind::kResNet, 1000);

  const Blocks blocks = FindBlocks(MakeProblem(graph, {}));

  for (int stage = 1; stage <= 4; ++stage) {
    // The first bottleneck differs: it has another input and a convolution for
    // it.
    const std::string path = "layer" + std::to_string(stage) + ".1";
    const auto op = std::find_if(graph.ops.begin(), graph.ops.end(),
                                 [&](const Op& o) { return o.module == path; });
    const OpId at = static_cast<OpId>(op - graph.ops.begin());
    ASSERT_TRUE(blocks.Has(at));
    EXPECT_EQ(blocks.runs[blocks.run_of[at]].begin, at);
    EXPECT_EQ(blocks.runs[blocks.run_of[at]].period, 10);
    EXPECT_GE(blocks.runs[blocks.run_of[at]].count, 6);
  }
}

TEST(FindBlocksTest, RandomLayersDoNotRepeat) {
  EXPECT_TRUE(RunsOf(Generated(GraphKind::kLayered, 1000)).empty());
}

TEST(FindBlocksTest, WhatRepeatsInsideABlockDoesNotHideTheBlock) {
  const std::vector<BlockRun> runs = RunsOf(BlocksOfFour(5));

  // No op resembles the first one, which reads nothing.
  ASSERT_EQ(runs.size(), 1u);
  EXPECT_EQ(runs[0].begin, 1);
  EXPECT_EQ(runs[0].period, 4);
  EXPECT_EQ(runs[0].count, 4);
}

TEST(FindBlocksTest, OneByteMoreInOneBlockEndsTheRun) {
  StepGraph graph = BlocksOfFour(9);
  graph.storages[4 * 5 + 1].bytes += 1;  // in the sixth block

  const std::vector<BlockRun> runs = RunsOf(graph);

  // Blocks 0 to 4 without the first op, and blocks 6 to 8.
  ASSERT_EQ(runs.size(), 2u);
  EXPECT_EQ(runs[0].count, 5);
  EXPECT_LE(runs[0].end(), 21);
  EXPECT_EQ(runs[1].count, 3);
  EXPECT_GE(runs[1].begin, 22);
}

TEST(FindBlocksTest, AnOpTwiceAsSlowEndsTheRunAndMeasurementNoiseDoesNot) {
  StepGraph noisy = BlocksOfFour(9);
  for (size_t i = 0; i < noisy.ops.size(); ++i) {
    noisy.ops[i].time_ns += static_cast<int64_t>(i * 7 % 11);
  }
  StepGraph slow = noisy;
  slow.ops[4 * 5].time_ns *= 2;

  EXPECT_EQ(RunsOf(noisy).size(), 1u);
  EXPECT_EQ(RunsOf(slow).size(), 2u);
}

TEST(FindBlocksTest, AnotherReaderOfTheSameBytesEndsTheRun) {
  StepGraph graph = BlocksOfFour(9);
  // b reads b of the previous block instead of a.
  graph.ops[4 * 5 + 1].reads = {4 * 4 + 1};

  for (const BlockRun& run : RunsOf(graph)) {
    EXPECT_FALSE(run.begin <= 20 && run.end() > 24);
  }
}

TEST(FindBlocksTest, WhatIsPinnedIsNotLikeWhatIsNot) {
  StepGraph graph = BlocksOfFour(4);
  graph.storages[9].pinned = true;

  const std::vector<BlockRun> runs = RunsOf(graph);

  EXPECT_TRUE(std::none_of(runs.begin(), runs.end(), [](const BlockRun& run) {
    return run.begin <= 9 && run.end() > 9 && run.count > 2;
  }));
}

TEST(FindBlocksTest, AUniformChainIsOneRun) {
  StepGraph graph;
  for (int i = 0; i < 50; ++i) {
    graph.storages.push_back({.bytes = 4});
    graph.ops.push_back({.time_ns = 1, .writes = {i}});
    if (i > 0) graph.ops.back().reads = {i - 1};
  }

  const std::vector<BlockRun> runs = RunsOf(graph);

  ASSERT_EQ(runs.size(), 1u);
  EXPECT_EQ(runs[0].period, 1);
  EXPECT_GE(runs[0].count, 49);
}

TEST(FindBlocksTest, AnEmptyGraphHasNone) { EXPECT_TRUE(RunsOf({}).empty()); }

// In any graph, runs are disjoint, and ops that are said to correspond are
// equal.
TEST(FindBlocksTest, InstancesOfAnyGraphAreEqualPlaceByPlace) {
  std::vector<StepGraph> graphs;
  for (uint64_t seed = 1; seed <= 300; ++seed) {
    Random random(seed);
    graphs.push_back(RandomGraph(random, 40));
  }
  for (int kind = 0; kind < 6; ++kind) {
    graphs.push_back(Generated(static_cast<GraphKind>(kind), 700));
  }
  for (const StepGraph& graph : graphs) {
    const Blocks blocks = FindBlocks(MakeProblem(graph, {}));
    OpId free = 0;
    for (const BlockRun& run : blocks.runs) {
      EXPECT_GE(run.begin, free);
      free = run.end();
      EXPECT_LE(free, graph.op_count());
      EXPECT_GE(run.count, 2);
      for (OpId o = run.begin + run.period; o < run.end(); ++o) {
        const Op& op = graph.ops[o];
        const Op& before = graph.ops[o - run.period];
        EXPECT_EQ(blocks.PlaceOf(o), blocks.PlaceOf(o - run.period));
        EXPECT_EQ(blocks.InstanceOf(o), blocks.InstanceOf(o - run.period) + 1);
        EXPECT_EQ(op.name, before.name);
        EXPECT_EQ(op.kind, before.kind);
        EXPECT_EQ(op.workspace_bytes, before.workspace_bytes);
        ASSERT_EQ(op.reads.size(), before.reads.size());
        ASSERT_EQ(op.writes.size(), before.writes.size());
        for (size_t i = 0; i < op.reads.size(); ++i) {
          EXPECT_EQ(graph.storages[op.reads[i]].bytes,
                    graph.storages[before.reads[i]].bytes);
        }
        for (size_t i = 0; i < op.writes.size(); ++i) {
          EXPECT_EQ(graph.storages[op.writes[i]].bytes,
                    graph.storages[before.writes[i]].bytes);
        }
      }
    }
  }
}

}  // namespace
}  // namespace reprise::planner
