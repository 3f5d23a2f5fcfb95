// SPDX-License-Identifier: Apache-2.0
#include "planner/explain/explain.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "bench/generate/generate.h"
#include "planner/explain/explain_groups.h"
#include "tests/planner/chain_step.h"
#include "tests/planner/host_case.h"
#include "tests/planner/random_graph.h"

namespace reprise::planner {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

// A chain whose ops are named like those of equal blocks.
StepGraph Layers(int layers) {
  StepGraph graph = Chain(layers);
  for (int i = 0; i < layers; ++i) {
    const std::string module = "layers." + std::to_string(i) + ".mlp";
    Op& forward = graph.ops[i];
    forward.name = "forward";
    forward.module = module;
    Op& backward = graph.ops[2 * layers - 1 - i];
    backward.name = "backward";
    backward.module = module;
  }
  return graph;
}

Plan Planned(const StepGraph& graph, int64_t budget_bytes) {
  const StatusOr<Plan> plan =
      MakePlan(graph, {.budget_bytes = budget_bytes, .max_ticks = 2'000'000});
  EXPECT_TRUE(plan.ok()) << plan.status().message();
  return *plan;
}

TEST(ExplainTest, EveryStorageHasADecisionAReasonAndItsLives) {
  const StepGraph graph = Layers(20);
  const Plan plan = Planned(graph, 120);
  ASSERT_TRUE(plan.feasible);

  const Explanation explained = Explain(graph, plan, 120, {});

  ASSERT_EQ(explained.storages.size(), 40u);
  int recomputed = 0;
  for (const StorageExplanation& storage : explained.storages) {
    EXPECT_FALSE(storage.why.empty());
    ASSERT_FALSE(storage.lives.empty());
    EXPECT_EQ(static_cast<int>(storage.lives.size()),
              storage.times_recomputed + 1);
    for (const StorageLife& life : storage.lives) {
      EXPECT_LE(life.born, life.last);
      EXPECT_LT(life.born_ns, life.last_ns);
    }
    if (storage.decision != Decision::kRecompute) continue;
    ++recomputed;
    EXPECT_THAT(storage.why, testing::AnyOf("cheap", "shared", "needed"));
    EXPECT_EQ(storage.recompute_ns, 100);
  }
  EXPECT_GT(recomputed, 0);
  EXPECT_EQ(explained.storages[3].made_by, 3);
  EXPECT_EQ(explained.storages[3].lives[0].born_ns, 300);
}

TEST(ExplainTest, TenBytesMoreSaveOneOpOfTheChain) {
  // Each layer trades 10 bytes for 100 ns: 10 ns a byte.
  const StepGraph graph = Layers(40);
  const Plan plan = Planned(graph, 300);

  EXPECT_NEAR(Explain(graph, plan, 300, {}).price_ns_per_byte, 10, 1);
  EXPECT_EQ(Explain(graph, Planned(graph, 1000), 1000, {}).price_ns_per_byte,
            0);
}

TEST(ExplainTest, WhatABudgetHasRoomForIsNotSaidToGainNothing) {
  // Twenty activations are alive at the peak; dropping any would lower it.
  const StepGraph graph = Layers(20);
  const Plan plan = Planned(graph, 1000);

  int room = 0;
  for (const StorageExplanation& storage :
       Explain(graph, plan, 1000, {}).storages) {
    if (!storage.alive_at_peak) {
      EXPECT_NE(storage.why, "room");
      continue;
    }
    EXPECT_NE(storage.why, "no_gain");
    room += storage.why == "room";
  }
  EXPECT_GT(room, 10);
  // A budget that binds has a price, which is the reason then.
  for (const StorageExplanation& storage :
       Explain(graph, Planned(graph, 180), 180, {}).storages) {
    EXPECT_NE(storage.why, "room");
  }
}

TEST(ExplainTest, KeepingWhatIsRecomputedSavesItsTimeAndCostsItsBytes) {
  const StepGraph graph = Layers(20);
  const Plan plan = Planned(graph, 180);

  int asked = 0;
  for (const StorageExplanation& storage :
       Explain(graph, plan, 180, {}).storages) {
    if (storage.decision != Decision::kRecompute) continue;
    ASSERT_TRUE(storage.what_if.has_value());
    ++asked;
    EXPECT_EQ(storage.what_if->decision, Decision::kSave);
    EXPECT_EQ(storage.what_if->added_ns, -100 * storage.times_recomputed);
    EXPECT_GE(storage.what_if->added_bytes, 0);
    EXPECT_LE(storage.what_if->added_bytes, 10);
  }
  EXPECT_GT(asked, 0);
}

TEST(ExplainTest, RecomputingWhatIsKeptCostsItsOp) {
  const StepGraph graph = Layers(20);
  const Plan plan = Planned(graph, 1000);  // keeps everything
  int asked = 0;
  for (const StorageExplanation& storage :
       Explain(graph, plan, 1000, {}).storages) {
    if (!storage.what_if) continue;
    ++asked;
    EXPECT_EQ(storage.what_if->decision, Decision::kRecompute);
    EXPECT_EQ(storage.what_if->added_ns, 100);
    EXPECT_LE(storage.what_if->added_bytes, 0);
  }
  EXPECT_GT(asked, 10);
}

TEST(ExplainTest, TakingBackARecomputeNeverAddsTime) {
  Random random(11);
  int asked = 0;
  for (int i = 0; i < 300; ++i) {
    const StepGraph graph = RandomGraph(random, 9);
    const Capabilities capabilities = RandomCapabilities(random);
    Request request{.budget_bytes = graph.static_bytes + 20,
                    .capabilities = capabilities,
                    .max_ticks = 20'000};
    const StatusOr<Plan> plan = MakePlan(graph, request);
    ASSERT_TRUE(plan.ok());
    const Explanation explained =
        Explain(graph, *plan, request.budget_bytes, capabilities);
    for (const StorageExplanation& storage : explained.storages) {
      if (!storage.what_if) continue;
      ++asked;
      if (storage.decision == Decision::kRecompute) {
        EXPECT_LE(storage.what_if->added_ns, 0);
      } else {
        EXPECT_GE(storage.what_if->added_ns, 0);
      }
    }
  }
  EXPECT_GT(asked, 20);
}

TEST(ExplainTest, EqualBlocksAreOneGroup) {
  const StepGraph graph = Layers(20);
  const Plan plan = Planned(graph, 1000);

  const Explanation explained = Explain(graph, plan, 1000, {});

  ASSERT_EQ(explained.groups.size(), 2u);
  EXPECT_EQ(explained.groups[0].name, "layers.0-19.mlp forward");
  EXPECT_EQ(explained.groups[0].storages.size(), 20u);
  EXPECT_EQ(explained.groups[0].bytes, 200);
  EXPECT_EQ(explained.groups[0].decision, Decision::kSave);
}

TEST(ExplainTest, StateOfOptimizersIsOneGroupWhateverItsPartsTake) {
  StepGraph graph = Layers(20);
  for (const int64_t bytes : {5, 7, 9}) AddState(graph, bytes);
  const Plan plan = Planned(graph, 1000);

  const Explanation explained = Explain(graph, plan, 1000, {});

  ASSERT_EQ(explained.groups.size(), 3u);
  EXPECT_EQ(explained.groups[2].name, "optimizer state");
  EXPECT_EQ(explained.groups[2].bytes, 21);
}

TEST(ExplainTest, EveryStorageIsInOneGroup) {
  const StatusOr<StepGraph> graph =
      Generate({.kind = GraphKind::kTransformer, .ops = 600});
  const int64_t budget =
      graph->static_bytes + (Planned(*graph, int64_t{1} << 60).base_peak_bytes -
                             graph->static_bytes) *
                                8 / 10;
  const Plan plan = Planned(*graph, budget);
  ASSERT_TRUE(plan.feasible);

  const Explanation explained = Explain(*graph, plan, budget, {});

  size_t grouped = 0;
  for (const StorageGroup& group : explained.groups) {
    grouped += group.storages.size();
  }
  EXPECT_EQ(grouped, static_cast<size_t>(graph->storage_count()));
  EXPECT_LT(explained.groups.size(), grouped / 3);
}

TEST(ExplainTest, SaysWhoForbidsToRecompute) {
  // Each op has another reason: a is `once`, b is seeded, c is changed in place
  // by a `once` op, d is pinned.
  StepGraph graph;
  for (int i = 0; i < 4; ++i) graph.storages.push_back({.bytes = 10});
  graph.storages[3].pinned = true;
  graph.ops = {
      {.time_ns = 1, .kind = OpKind::kOnce, .writes = {0}},
      {.time_ns = 1, .kind = OpKind::kSeeded, .writes = {1}},
      {.time_ns = 1, .writes = {2}},
      {.time_ns = 1, .kind = OpKind::kOnce, .reads = {2}, .mutates = {2}},
      {.time_ns = 1, .writes = {3}},
      {.time_ns = 1,
       .phase = Phase::kBackward,
       .kind = OpKind::kOnce,
       .reads = {0, 1, 2, 3}}};
  ASSERT_TRUE(Validate(graph).ok());

  const Explanation explained = Explain(graph, Planned(graph, 100), 100, {});

  EXPECT_EQ(explained.storages[0].why, "not_repeatable");
  EXPECT_EQ(explained.storages[1].why, "capability");
  EXPECT_EQ(explained.storages[2].why, "not_repeatable");
  EXPECT_EQ(explained.storages[3].why, "pinned");
}

TEST(ExplainTest, AnImpossibleBudgetNamesItsOpAndWhatThatNeeds) {
  StepGraph graph = Layers(6);
  graph.static_bytes = 5;
  graph.ops[8].workspace_bytes = 7;  // reads 2 x 10 bytes, writes 10
  const Plan plan = Planned(graph, 30);
  ASSERT_FALSE(plan.feasible);

  const WorkingSet set = Explain(graph, plan, 30, {}).working_set;

  EXPECT_EQ(set.op, 8);
  EXPECT_EQ(set.bytes, 5 + 30 + 7);
  EXPECT_EQ(set.workspace_bytes, 7);
  EXPECT_EQ(set.storages.size(), 3u);
  EXPECT_THAT(set.advice, HasSubstr("smaller batch"));
}

TEST(ExplainTest, ThePartsOfWhatIsInTheWayAddUp) {
  StepGraph graph = Layers(6);
  graph.static_bytes = 5;
  graph.ops[8].workspace_bytes = 7;
  // The program keeps the first layer's output to the end of the step.
  graph.storages[0].release_op = static_cast<OpId>(graph.op_count()) - 1;
  const Capabilities as_the_program = {.free_policy = FreePolicy::kProgram};
  const StatusOr<Plan> plan =
      MakePlan(graph, {.budget_bytes = 30, .capabilities = as_the_program});
  ASSERT_TRUE(plan.ok()) << plan.status().message();
  ASSERT_FALSE(plan->feasible);

  const WorkingSet set = Explain(graph, *plan, 30, as_the_program).working_set;

  ASSERT_FALSE(set.by_window);
  int64_t sum = graph.static_bytes + set.workspace_bytes;
  for (const StorageId s : set.storages) sum += graph.storages[s].bytes;
  EXPECT_EQ(sum, set.bytes);
  EXPECT_EQ(set.storages.size(), 4u);
}

TEST(ExplainTest, OfAnImpossibleBudgetTheStepWithoutAPlanIsTold) {
  const StepGraph graph = Layers(6);
  const Plan plan = Planned(graph, 20);
  ASSERT_FALSE(plan.feasible);

  int64_t at_base_peak = graph.static_bytes;
  for (const StorageExplanation& s : Explain(graph, plan, 20, {}).storages) {
    EXPECT_FALSE(s.alive_at_peak);
    if (s.alive_at_base_peak) at_base_peak += graph.storages[s.storage].bytes;
  }

  EXPECT_EQ(at_base_peak, plan.base_peak_bytes);
}

TEST(ExplainTest, TheAdviceForRandomOpsIsAnExecutorThatRunsThemAgain) {
  StepGraph graph = Layers(6);
  for (Op& op : graph.ops) {
    if (op.phase == Phase::kForward) op.kind = OpKind::kSeeded;
  }
  const auto advice = [&] {
    const Plan plan = Planned(graph, 45);
    EXPECT_FALSE(plan.feasible);
    return Explain(graph, plan, 45, {}).working_set.advice;
  };

  EXPECT_THAT(advice(), HasSubstr("seeded_ok"));
  for (Op& op : graph.ops) {
    if (op.phase == Phase::kForward) op.kind = OpKind::kOnce;
  }
  EXPECT_THAT(advice(), Not(HasSubstr("seeded_ok")));
}

TEST(ExplainTest, EqualBlocksAreGroupedWithoutModuleNames) {
  StepGraph graph = Layers(20);
  for (Op& op : graph.ops) op.module.clear();
  const Plan plan = Planned(graph, 400);
  ASSERT_TRUE(plan.feasible);

  const Explanation explained = Explain(graph, plan, 400, {});

  // All except the first one, which reads nothing.
  ASSERT_GE(explained.groups.size(), 2u);
  EXPECT_LE(explained.groups.size(), 6u);
  EXPECT_EQ(explained.groups[0].name, "forward");
  EXPECT_GE(explained.groups[0].storages.size(), 18u);
}

TEST(JoinPathsTest, ListsPathsThatDifferInWords) {
  EXPECT_EQ(JoinPaths({"encoder.0", "decoder.0", "encoder.1"}),
            "encoder.0-1, decoder.0");
  EXPECT_EQ(JoinPaths({"a", "b", "c", "d", "e"}), "a, b, c, .. 2 more");
}

TEST(JoinPathsTest, WritesNumbersAsRanges) {
  EXPECT_EQ(JoinPaths({"layers.0.mlp", "layers.1.mlp", "layers.3.mlp"}),
            "layers.0-1,3.mlp");
  EXPECT_EQ(JoinPaths({"a.1.b.7", "a.2.b.7"}), "a.1-2.b.7");
  EXPECT_EQ(JoinPaths({"conv2d"}), "conv2d");
  EXPECT_EQ(JoinPaths({"x#y.1"}), "x#y.1");
  EXPECT_EQ(JoinPaths({""}), "");
}

}  // namespace
}  // namespace reprise::planner
