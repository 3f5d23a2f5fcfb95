// SPDX-License-Identifier: Apache-2.0
#include "planner/construct/checkpointed.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "planner/model/evaluate.h"
#include "tests/planner/random_graph.h"

namespace reprise::planner {
namespace {

using ::testing::ElementsAre;

constexpr Capabilities kTorch = {
    .seeded_ok = true, .collective_ok = true, .duplicate_outputs = true};

StatusOr<Evaluation> Judge(const StepGraph& graph, const Checkpointed& regions,
                           std::vector<MemoryPoint>* profile = nullptr) {
  const CheckpointedStep step = RunCheckpointed(graph, regions);
  return Evaluate(step.graph,
                  WithFrees(step.graph, step.execs, FreePolicy::kEager), kTorch,
                  profile);
}

// x0 -> [a0 h0 b0 x1] -> [a1 h1 b1 x2] -> loss; the backward of a block reads
// its h and its input.
StepGraph TwoBlocks() {
  StepGraph graph;
  for (const int64_t bytes : {10, 100, 10, 100, 10, 1, 1, 1}) {
    graph.storages.push_back({.bytes = bytes});
  }
  const Phase back = Phase::kBackward;
  graph.ops = {
      {.time_ns = 1, .writes = {0}, .name = "x0"},
      {.time_ns = 2, .reads = {0}, .writes = {1}, .module = "layers.0.a"},
      {.time_ns = 4, .reads = {0, 1}, .writes = {2}, .module = "layers.0"},
      {.time_ns = 8, .reads = {2}, .writes = {3}, .module = "layers.1.a"},
      {.time_ns = 16, .reads = {2, 3}, .writes = {4}, .module = "layers.1"},
      {.reads = {4}, .writes = {5}, .name = "loss"},
      {.phase = back, .reads = {2, 3, 5}, .writes = {6}},
      {.phase = back, .reads = {0, 1, 6}, .writes = {7}}};
  graph.required = {7};
  return graph;
}

TEST(CheckpointedTest, ABlockRunsAgainBeforeItsBackwardUpToTheLastThingNeeded) {
  const StepGraph graph = TwoBlocks();

  const CheckpointedStep step = RunCheckpointed(graph, CheckpointBlocks(graph));

  // b0 and b1 make what leaves their blocks, which stays.
  EXPECT_THAT(step.execs, ElementsAre(0, 1, 2, 3, 4, 5, 3, 6, 1, 7));
}

TEST(CheckpointedTest, WhatIsSavedStaysUntilItsBlockRunsAgain) {
  StepGraph graph = TwoBlocks();
  graph.storages.push_back({.bytes = 1000});  // no op reads it
  graph.ops.insert(graph.ops.begin() + 1,
                   {.reads = {0}, .writes = {8}, .module = "layers.0"});
  Checkpointed regions = CheckpointBlocks(graph);
  std::vector<MemoryPoint> dropped, saved;
  ASSERT_TRUE(Judge(graph, regions, &dropped).ok());
  regions.saved[1] = 1;
  ASSERT_TRUE(Judge(graph, regions, &saved).ok());

  // At the loss.
  EXPECT_EQ(saved[6].bytes, dropped[6].bytes + 1000);
}

TEST(CheckpointedTest, BlocksAreFoundByTheirNames) {
  EXPECT_EQ(BlockOf("encoder.layers.3.attn"), "encoder.layers.3");
  EXPECT_EQ(BlockOf("encoder.layers.encoder_layer_3.ln_1"),
            "encoder.layers.encoder_layer_3");
  EXPECT_EQ(BlockOf("layer1.0.conv1"), "layer1.0");
  EXPECT_EQ(BlockOf("3"), "");
  EXPECT_EQ(BlockOf("conv1.weight"), "");
  EXPECT_EQ(BlockOf(""), "");
  EXPECT_EQ(BlockOf("..."), "");
}

TEST(CheckpointedTest, RandomRegionsOfRandomStepsAreValid) {
  for (int seed = 0; seed < 3000; ++seed) {
    Random random(seed);
    StepGraph graph = RandomGraph(random, 14);
    Checkpointed regions{.region = std::vector<int32_t>(graph.ops.size(), -1),
                         .saved = std::vector<uint8_t>(graph.ops.size(), 0)};
    int32_t region = 0;
    int64_t base_ns = 0;
    bool mutates = false;
    bool forward = true;
    for (OpId o = 0; o < graph.op_count(); ++o) {
      const Op& op = graph.ops[o];
      forward = forward && op.phase == Phase::kForward;
      mutates = mutates || !op.mutates.empty();
      base_ns += op.time_ns;
      if (!forward) continue;
      region += static_cast<int32_t>(random.Below(3) == 0);
      if (random.Below(4) != 0) regions.region[o] = region;
      regions.saved[o] = random.Below(5) == 0 ? 1 : 0;
    }

    const auto found = Judge(graph, regions);

    // Ops in place may change what another region made.
    if (mutates && !found.ok()) continue;
    ASSERT_TRUE(found.ok()) << seed << ": " << found.status().message();
    EXPECT_GE(found->time_ns, base_ns);
  }
}

}  // namespace
}  // namespace reprise::planner
