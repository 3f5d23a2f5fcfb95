// SPDX-License-Identifier: Apache-2.0
#include "planner/executor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "planner/generate.h"
#include "tests/planner/random_graph.h"

namespace reprise::planner {
namespace {

using ::testing::ElementsAre;

// Forward x0 -> x1 -> x2 -> x3; the backward reads x3, x2, x1, x0 in turn.
StepGraph Chain(int layers) {
  StepGraph graph;
  for (int i = 0; i < layers; ++i) {
    graph.storages.push_back({.bytes = 10});
    Op op{.time_ns = 100, .writes = {i}};
    if (i > 0) op.reads = {i - 1};
    graph.ops.push_back(op);
  }
  for (int i = layers; i-- > 0;) {
    const StorageId gradient = graph.storage_count();
    graph.storages.push_back({.bytes = 10});
    Op op{.time_ns = 200, .phase = Phase::kBackward, .reads = {i}};
    if (i + 1 < layers) op.reads.push_back(gradient - 1);
    op.writes = {gradient};
    graph.ops.push_back(op);
  }
  graph.required = {graph.storage_count() - 1};
  return graph;
}

TEST(ExecutorTest, OnceRemakesWhatIsMissingInBaseOrderBeforeItsFirstReader) {
  const StepGraph graph = Chain(4);
  const Problem problem = MakeProblem(graph, {.execution = Execution::kOnce});
  SavedSet saved = SaveAll(problem);
  saved[1] = saved[2] = 0;

  // x2 is read by op 5 and needs x1, which then stays for op 6.
  EXPECT_THAT(OnceExecs(problem, saved),
              ElementsAre(0, 1, 2, 3, 4, 1, 2, 5, 6, 7));
}

TEST(ExecutorTest, NestedReplaysAWholeRegionAtItsFirstNeed) {
  const StepGraph graph = Chain(6);
  const Problem problem = MakeProblem(graph, {.execution = Execution::kNested});
  const SavedSet saved(graph.storage_count(), 0);

  // Regions {0, 1, 2} and {3, 4, 5}; x2 crosses and is saved.
  EXPECT_THAT(NestedExecs(problem, {0, 0, 0, 1, 1, 1}, saved),
              ElementsAre(0, 1, 2, 3, 4, 5, 3, 4, 5, 6, 7, 8, 9, 0, 1, 10, 11));
}

TEST(ExecutorTest, WhatMayNotRunAgainIsSavedWhateverTheSetSays) {
  StepGraph graph = Chain(4);
  graph.ops[2].kind = OpKind::kOnce;
  const Problem problem = MakeProblem(graph, {.execution = Execution::kOnce});

  EXPECT_THAT(OnceExecs(problem, SavedSet(graph.storage_count(), 0)),
              ElementsAre(0, 1, 2, 3, 3, 4, 5, 0, 1, 6, 7));
}

TEST(ExecutorTest, PlansOfBothKindsObeyTheirRulesAndTheBound) {
  for (const GraphKind kind :
       {GraphKind::kTransformer, GraphKind::kResNet, GraphKind::kUNet}) {
    const auto graph = Generate({.kind = kind, .ops = 200});
    ASSERT_TRUE(graph.ok());
    double free_overhead = 0;
    for (const Execution execution :
         {Execution::kFree, Execution::kOnce, Execution::kNested}) {
      const Capabilities capabilities{.execution = execution};
      const Problem problem = MakeProblem(*graph, capabilities);
      const int64_t budget =
          problem.static_bytes +
          (problem.base.peak_bytes - problem.static_bytes) * 7 / 10;

      const StatusOr<Plan> plan =
          MakePlan(*graph, {.budget_bytes = budget,
                            .capabilities = capabilities,
                            .max_ticks = 8'000'000});

      ASSERT_TRUE(plan.ok()) << plan.status().message();
      ASSERT_TRUE(plan->feasible) << static_cast<int>(execution);
      EXPECT_LE(plan->bound, plan->overhead);
      EXPECT_LE(plan->evaluation.peak_bytes, budget);
      if (execution == Execution::kFree) {
        free_overhead = plan->bound;
        continue;
      }
      // Nobody does better than a schedule without restrictions may.
      EXPECT_GE(plan->overhead, free_overhead);
      std::vector<int> runs(graph->op_count(), 0);
      std::vector<OpId> execs;
      for (const Entry& entry : plan->schedule) {
        if (entry.kind != Entry::Kind::kExec) continue;
        EXPECT_LE(++runs[entry.id], 2);
        execs.push_back(entry.id);
      }
      if (execution == Execution::kOnce && plan->solver == "saved-set") {
        // The plan is what the executor makes of its saved set.
        EXPECT_EQ(OnceExecs(problem, SavedBy(problem, execs)), execs);
      }
    }
  }
}

TEST(ExecutorTest, PlansOnRandomGraphsAreValid) {
  Random random(41);
  int feasible = 0;
  for (int i = 0; i < 300; ++i) {
    const StepGraph graph = RandomGraph(random, 12);
    Capabilities capabilities = RandomCapabilities(random);
    capabilities.execution = i % 2 == 0 ? Execution::kOnce : Execution::kNested;
    const Problem problem = MakeProblem(graph, capabilities);
    const int64_t budget = problem.base.peak_bytes - 1 - random.Below(4);
    if (budget < 0) continue;

    const StatusOr<Plan> plan = MakePlan(graph, {.budget_bytes = budget,
                                                 .capabilities = capabilities,
                                                 .max_ticks = 100'000});

    ASSERT_TRUE(plan.ok()) << "graph " << i << ": " << plan.status().message();
    feasible += plan->feasible;
  }
  EXPECT_GT(feasible, 10);
}

}  // namespace
}  // namespace reprise::planner
