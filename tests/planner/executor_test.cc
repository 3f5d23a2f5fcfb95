// SPDX-License-Identifier: Apache-2.0
#include "planner/regions/executor.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "bench/generate/generate.h"
#include "tests/planner/chain_step.h"
#include "tests/planner/random_graph.h"
#include "tests/planner/region_oracle.h"

namespace reprise::planner {
namespace {

std::vector<OpId> ExecsIn(const Schedule& schedule) {
  std::vector<OpId> execs;
  for (const Entry& entry : schedule) {
    if (entry.kind == Entry::Kind::kExec) execs.push_back(entry.id);
  }
  return execs;
}

Plan PlanFor(const StepGraph& graph, Execution execution, int max_runs,
             int64_t budget_bytes, int64_t ticks) {
  return MustPlan(
      graph, {.budget_bytes = budget_bytes,
              .capabilities = {.max_runs = max_runs, .execution = execution},
              .max_ticks = ticks});
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
      // No executor beats a schedule without restrictions.
      EXPECT_GE(plan->overhead, free_overhead);
      // The plan's schedule is the one that the executor derives from its
      // regions.
      EXPECT_TRUE(EvaluateRegions(problem, plan->schedule, plan->regions).ok());
      EXPECT_EQ(ExecsOf(*graph, problem.capabilities, plan->regions),
                ExecsIn(plan->schedule));
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

TEST(ExecutorTest, AMillionTicksAreEnoughForAPlanOfAPerceptron) {
  const StepGraph graph = Perceptron(16);
  for (const Execution execution : {Execution::kOnce, Execution::kNested}) {
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

TEST(ExecutorTest, RegionsCostAPerceptronNoMoreThanAnyScheduleAtHalfItsMemory) {
  const StepGraph graph = Perceptron(16);
  const int64_t budget = MakeProblem(graph, {}).base.peak_bytes / 2;
  const Plan free = MustPlan(graph, {.budget_bytes = budget});
  ASSERT_TRUE(free.feasible);
  ASSERT_GT(free.overhead, 0);
  for (const Execution execution : {Execution::kOnce, Execution::kNested}) {
    const Request request{.budget_bytes = budget,
                          .capabilities = {.execution = execution}};

    const Plan plan = MustPlan(graph, request);

    EXPECT_TRUE(plan.feasible);
    EXPECT_EQ(plan.evaluation.time_ns, free.evaluation.time_ns);
  }
}

TEST(ExecutorTest, ReportsNoOverheadThatItsPlansDoNotHave) {
  const StepGraph graph = Perceptron(16);
  // At this budget, regions that run once need more time than schedules.
  for (const Execution execution : {Execution::kOnce, Execution::kNested}) {
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
    if (plan->feasible) {
      EXPECT_EQ(ExecsOf(graph, problem.capabilities, plan->regions),
                ExecsIn(plan->schedule))
          << "graph " << i;
    }
    feasible += plan->feasible;
  }
  EXPECT_GT(feasible, 10);
}

TEST(ExecutorTest, NestedRegionsReachWhatFlatOnesCannot) {
  // Flat regions of a chain of 100 keep at least about 2 sqrt(100) values;
  // nested ones need about log2(100) of them.
  const StepGraph graph = UniformChain(100);
  const int64_t kBudget = 90;

  EXPECT_FALSE(
      PlanFor(graph, Execution::kNested, 2, kBudget, 4'000'000).feasible);
  const Plan plan = PlanFor(graph, Execution::kNested, 0, kBudget, 4'000'000);

  ASSERT_TRUE(plan.feasible);
  EXPECT_EQ(plan.solver, "nested-regions");
  EXPECT_LE(plan.evaluation.peak_bytes, kBudget);
}

TEST(ExecutorTest, NestedRegionsOfAUniformChainReachRevolve) {
  for (const int length : {16, 100, 400}) {
    const StepGraph graph = UniformChain(length);
    for (const int slots : {3, 5, 9}) {
      const auto revolve = Evaluate(
          graph,
          WithFrees(graph, RevolveExecs(length, slots), FreePolicy::kEager),
          {});
      ASSERT_TRUE(revolve.ok());
      // One value more than Revolve: the output of a region is saved.
      const int64_t budget = revolve->peak_bytes + 10;

      const Plan plan =
          PlanFor(graph, Execution::kNested, 0, budget, 20'000'000);

      ASSERT_TRUE(plan.feasible) << length << " ops, " << budget << " bytes";
      EXPECT_LE(plan.evaluation.time_ns, revolve->time_ns)
          << length << " ops, " << slots << " slots";
    }
  }
}

TEST(ExecutorTest, NestedRegionsAreNotWorseThanFlatOnesForTheSameEffort) {
  for (const GraphKind kind : {GraphKind::kTransformer, GraphKind::kResNet,
                               GraphKind::kUNet, GraphKind::kMoe}) {
    const auto graph = Generate({.kind = kind, .ops = 150});
    ASSERT_TRUE(graph.ok());
    const Problem problem = MakeProblem(*graph, {});
    for (const int percent : {80, 60, 45}) {
      const int64_t budget =
          problem.static_bytes +
          (problem.base.peak_bytes - problem.static_bytes) * percent / 100;

      const Plan flat =
          PlanFor(*graph, Execution::kNested, 2, budget, 4'000'000);
      // Flat plans are a subset of the nested ones, which get only half of the
      // effort.
      const Plan nested =
          PlanFor(*graph, Execution::kNested, 0, budget, 8'000'000);

      if (!flat.feasible) continue;
      ASSERT_TRUE(nested.feasible);
      // A search ends as soon as it is this close to its bound. The two anneal
      // from different schedules, so they may differ by what is far below that.
      const double gap = Request().target_gap;
      EXPECT_LE(nested.overhead,
                std::max(flat.overhead + gap / 100, nested.bound + gap))
          << static_cast<int>(kind) << " at " << percent << " %";
    }
  }
}

}  // namespace
}  // namespace reprise::planner
