// SPDX-License-Identifier: Apache-2.0
#include "planner/once/once.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "bench/generate/generate.h"
#include "tests/planner/chain_step.h"
#include "tests/planner/once_oracle.h"
#include "tests/planner/random_graph.h"

namespace reprise::planner {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// A problem of an executor that runs an op again once.
Problem Once(const StepGraph& graph) {
  return MakeProblem(graph, {.execution = Execution::kOnce});
}

SavedSet NothingSaved(const StepGraph& graph) {
  return SavedSet(graph.storage_count(), 0);
}

std::vector<OpId> ExecsIn(const Schedule& schedule) {
  std::vector<OpId> execs;
  for (const Entry& entry : schedule) {
    if (entry.kind == Entry::Kind::kExec) execs.push_back(entry.id);
  }
  return execs;
}

TEST(OnceTest, OnlyWhatIsNeededRunsAgain) {
  const StepGraph graph = UniformChain(4);
  SavedSet saved = NothingSaved(graph);
  saved[3] = saved[0] = 1;

  // Op 5 reads x2, whose recomputation needs x1; x1 then stays for op 6.
  EXPECT_THAT(OnceExecs(Once(graph), saved),
              ElementsAre(0, 1, 2, 3, 4, 1, 2, 5, 6, 7));
}

TEST(OnceTest, WhatMayNotRunAgainIsSavedWhateverTheSetSays) {
  StepGraph graph = UniformChain(4);
  graph.ops[2].kind = OpKind::kOnce;

  // x2 is there: x3 needs nothing else.
  EXPECT_THAT(OnceExecs(Once(graph), NothingSaved(graph)),
              ElementsAre(0, 1, 2, 3, 3, 4, 5, 0, 1, 6, 7));
}

TEST(OnceTest, AgreesWithAnotherReadingOfTheRules) {
  Random random(7);
  int ran = 0;
  for (int i = 0; i < 3000; ++i) {
    const StepGraph graph = RandomGraph(random, 9);
    Capabilities capabilities = RandomCapabilities(random);
    capabilities.execution = Execution::kOnce;
    capabilities.max_runs = 0;
    capabilities = WithExecution(capabilities);
    const Problem problem = MakeProblem(graph, capabilities);
    const int forward = ForwardOps(graph);
    if (forward == 0 || forward == graph.op_count()) continue;
    SavedSet saved;
    for (StorageId s = 0; s < graph.storage_count(); ++s) {
      saved.push_back(random.Percent(50));
    }

    const auto expected = ExecsOf(graph, capabilities, saved);
    const std::vector<OpId> execs = OnceExecs(problem, saved);

    EXPECT_EQ(execs, expected.value_or(std::vector<OpId>{})) << "graph " << i;
    const bool again = expected.has_value() &&
                       static_cast<int>(expected->size()) > graph.op_count();
    if (!again || !EvaluateExecs(problem, execs).ok()) continue;
    // Such a schedule shows what was saved.
    EXPECT_EQ(OnceExecs(problem, SavedIn(problem, execs)), execs)
        << "graph " << i;
    ++ran;
  }
  EXPECT_GT(ran, 300);
}

TEST(OnceTest, TheRefereeNamesTheFirstDifference) {
  const StepGraph graph = UniformChain(4);
  const auto said = [&](const std::vector<OpId>& execs) {
    return std::string(
        EvaluateOnce(Once(graph), WithFrees(graph, execs, FreePolicy::kEager))
            .status()
            .message());
  };
  EXPECT_EQ(said(OnceExecs(Once(graph), NothingSaved(graph))), "");

  // x1 is made again before op 4, which does not read it.
  EXPECT_THAT(said({0, 1, 2, 3, 0, 1, 4, 5, 6, 7}),
              HasSubstr("run 4 is op 0 where the executor"));
}

TEST(OnceTest, PlansObeyTheirRulesAndTheBound) {
  for (const GraphKind kind :
       {GraphKind::kTransformer, GraphKind::kResNet, GraphKind::kUNet}) {
    const auto graph = Generate({.kind = kind, .ops = 200});
    ASSERT_TRUE(graph.ok());
    double free_overhead = 0;
    for (const Execution execution : {Execution::kFree, Execution::kOnce}) {
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
      // No executor beats a schedule without restrictions.
      EXPECT_GE(plan->overhead, free_overhead);
      // The plan's schedule is the one that the executor derives from what is
      // saved.
      EXPECT_TRUE(EvaluateOnce(problem, plan->schedule).ok());
      const std::vector<OpId> execs = ExecsIn(plan->schedule);
      EXPECT_EQ(ExecsOf(*graph, problem.capabilities, SavedIn(problem, execs)),
                execs);
    }
  }
}

// A perceptron as a JAX program lists it: products and tanh, then per layer the
// derivative of tanh, the weight's gradient (a result: static memory) and the
// gradient of the layer below.
StepGraph Perceptron(int layers) {
  StepGraph graph;
  const auto add = [&](int64_t bytes, Op op) {
    const StorageId made = graph.storage_count();
    graph.storages.push_back({.bytes = bytes});
    op.writes = {made};
    graph.ops.push_back(std::move(op));
    return made;
  };
  std::vector<StorageId> outputs;
  for (int i = 0; i < layers; ++i) {
    Op product{.time_ns = 14'314};
    if (i > 0) product.reads = {outputs.back()};
    const StorageId sum = add(2048, product);
    outputs.push_back(add(2048, {.time_ns = 1'050, .reads = {sum}}));
  }
  StorageId gradient = add(
      2048,
      {.time_ns = 1'000, .phase = Phase::kBackward, .reads = {outputs.back()}});
  for (int i = layers; i-- > 0;) {
    const StorageId inner = add(2048, {.time_ns = 1'443,
                                       .phase = Phase::kBackward,
                                       .reads = {outputs[i], gradient}});
    Op weight{.time_ns = 14'314, .phase = Phase::kBackward, .reads = {inner}};
    if (i > 0) weight.reads.push_back(outputs[i - 1]);
    graph.required.push_back(add(0, weight));
    if (i > 0) {
      gradient =
          add(2048,
              {.time_ns = 14'314, .phase = Phase::kBackward, .reads = {inner}});
    }
  }
  return graph;
}

TEST(OnceTest, AMillionTicksAreEnoughForAPlanOfAPerceptron) {
  const StepGraph graph = Perceptron(16);
  for (const Execution execution : {Execution::kOnce}) {
    const Capabilities capabilities{.execution = execution};
    const Problem problem = MakeProblem(graph, capabilities);
    for (const int percent : {90, 80, 70, 60, 50, 40}) {
      Request request{
          .budget_bytes = problem.base.peak_bytes * percent / 100,
          .capabilities = capabilities,
          .until_stopped = true,
      };
      // It is asked every 50,000 ticks.
      int questions = 0;
      request.should_stop = [&] { return ++questions > 20; };

      const Plan plan = MustPlan(graph, request);

      EXPECT_TRUE(plan.feasible)
          << static_cast<int>(execution) << " at " << percent << " %";
    }
  }
}

TEST(OnceTest, SavedSetsCostAPerceptronNoMoreThanAnyScheduleAtHalfItsMemory) {
  const StepGraph graph = Perceptron(16);
  const int64_t budget = MakeProblem(graph, {}).base.peak_bytes / 2;
  const Plan free = MustPlan(graph, {.budget_bytes = budget});
  ASSERT_TRUE(free.feasible);
  ASSERT_GT(free.overhead, 0);
  for (const Execution execution : {Execution::kOnce}) {
    const Request request{.budget_bytes = budget,
                          .capabilities = {.execution = execution}};

    const Plan plan = MustPlan(graph, request);

    EXPECT_TRUE(plan.feasible);
    EXPECT_EQ(plan.evaluation.time_ns, free.evaluation.time_ns);
  }
}

TEST(OnceTest, ReportsNoOverheadThatItsPlansDoNotHave) {
  const StepGraph graph = Perceptron(16);
  // At this budget, executors that run ops again once need more time than schedules.
  for (const Execution execution : {Execution::kOnce}) {
    const Capabilities capabilities{.execution = execution};
    Request request{
        .budget_bytes =
            MakeProblem(graph, capabilities).base.peak_bytes * 35 / 100,
        .capabilities = capabilities,
        .max_ticks = 4'000'000};
    std::vector<double> reported;
    request.on_progress = [&](const Progress& progress) {
      if (progress.overhead >= 0) reported.push_back(progress.overhead);
    };

    const Plan plan = MustPlan(graph, request);

    for (const double overhead : reported) {
      EXPECT_GE(overhead, plan.feasible ? plan.overhead : 1e9);
    }
  }
}

TEST(OnceTest, PlansOnRandomGraphsAreValid) {
  Random random(41);
  int feasible = 0;
  for (int i = 0; i < 300; ++i) {
    const StepGraph graph = RandomGraph(random, 12);
    Capabilities capabilities = RandomCapabilities(random);
    capabilities.execution = Execution::kOnce;
    const Problem problem = MakeProblem(graph, capabilities);
    const int64_t budget = problem.base.peak_bytes - 1 - random.Below(4);
    if (budget < 0) continue;

    const StatusOr<Plan> plan = MakePlan(graph, {.budget_bytes = budget,
                                                 .capabilities = capabilities,
                                                 .max_ticks = 100'000});

    ASSERT_TRUE(plan.ok()) << "graph " << i << ": " << plan.status().message();
    if (plan->feasible) {
      const std::vector<OpId> execs = ExecsIn(plan->schedule);
      EXPECT_EQ(ExecsOf(graph, problem.capabilities, SavedIn(problem, execs)),
                execs)
          << "graph " << i;
    }
    feasible += plan->feasible;
  }
  EXPECT_GT(feasible, 10);
}

}  // namespace
}  // namespace reprise::planner
