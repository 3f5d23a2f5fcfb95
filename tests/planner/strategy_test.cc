// SPDX-License-Identifier: Apache-2.0
#include "planner/construct/strategy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "bench/generate/generate.h"
#include "planner/chains/chain.h"
#include "planner/chains/chain_plan.h"
#include "planner/chains/rotor.h"
#include "tests/planner/chain_step.h"
#include "tests/planner/random_graph.h"

namespace reprise::planner {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(ChainTest, EveryOpOfAChainEndsAStage) {
  const StepGraph graph = Chain(6);
  const Problem problem = MakeProblem(graph, {});

  const auto chain = FindChain(problem);

  EXPECT_TRUE(chain.articulated);
  EXPECT_THAT(chain.ends, ElementsAre(0, 1, 2, 3, 4, 5));
  // The backward of layer i reads x_(i-1), the input of stage i; that of layer
  // 0 reads its gradient only and joins the stage of the op before it.
  EXPECT_THAT(StagesOfOps(problem, chain),
              ElementsAre(0, 1, 2, 3, 4, 5, 5, 4, 3, 2, 1, 1));
  EXPECT_THAT(JoinStages(problem, chain, 3).ends, ElementsAre(1, 3, 5));
}

TEST(ChainTest, ASkipHidesTheOpsBelowIt) {
  // x0 -> x1 -> x2 -> x3, and x3 reads x0 too: x1 and x2 are no articulation
  // points; then x3 -> x4 -> x5 -> x6.
  StepGraph graph = Chain(7);
  graph.ops[3].reads = {0, 2};
  const Problem problem = MakeProblem(graph, {});

  EXPECT_THAT(FindChain(problem).ends, ElementsAre(0, 3, 4, 5, 6));
}

TEST(StrategyTest, NamesAreReadAndWritten) {
  for (const std::string_view name :
       {"auto", "memory", "speed", "collection", "per-block", "save-all"}) {
    const StatusOr<Strategy> strategy = ParseStrategy(name);
    ASSERT_TRUE(strategy.ok());
    EXPECT_EQ(NameOf(*strategy), name);
  }
  EXPECT_THAT(ParseStrategy("best").status().message(),
              HasSubstr("auto, memory, speed, collection, per-block or save"));
}

TEST(StrategyTest, MemoryIsAtLeastAsGoodAsTheSquareRootOnChains) {
  for (const int layers : {16, 25, 100, 400, 1000, 5000}) {
    const StepGraph graph = Chain(layers);
    const Problem problem = MakeProblem(graph, {});
    Generator generator(problem);

    const auto candidates =
        StrategyCandidates(problem, Strategy::kMemory, generator);

    ASSERT_FALSE(candidates.empty());
    // Segments of r = ceil(sqrt n) layers: at most n/r boundaries and one
    // segment, with the two gradients of a backward op.
    const int root = static_cast<int>(std::ceil(std::sqrt(layers)));
    const int64_t chen = 10 * ((layers + root - 1) / root + root + 2);
    EXPECT_LE(candidates.front().peak_bytes, chen) << layers << " layers";
    // Never more than one additional forward.
    EXPECT_LE(candidates.front().time_ns - problem.base.time_ns,
              int64_t{100} * layers);
  }
}

TEST(StrategyTest, SpeedKeepsProductsAndRecomputesTheRest) {
  StepGraph graph = Chain(8);
  for (int i = 0; i < 8; ++i) {
    graph.ops[i].name = i % 2 == 0 ? "aten.convolution" : "aten.relu";
  }

  const Plan plan = MustPlan(
      graph, {.budget_bytes = 1'000'000, .strategy = Strategy::kSpeed});

  ASSERT_TRUE(plan.feasible);
  EXPECT_EQ(plan.solver, "speed");
  // relu 7 is the loss here: its output is read once, by the next op.
  EXPECT_THAT(plan.recomputed_ops, testing::UnorderedElementsAre(1, 3, 5, 7));
}

TEST(StrategyTest, CollectionKeepsWhatIsMarked) {
  StepGraph graph = Chain(8);
  graph.storages[2].pinned = true;
  graph.storages[5].pinned = true;

  const Plan plan = MustPlan(
      graph, {.budget_bytes = 1'000'000, .strategy = Strategy::kCollection});

  ASSERT_TRUE(plan.feasible);
  EXPECT_THAT(plan.recomputed_ops,
              testing::UnorderedElementsAre(0, 1, 3, 4, 6, 7));
}

TEST(StrategyTest, PerBlockKeepsWhatLeavesABlock) {
  StepGraph graph = Chain(9);
  for (int i = 0; i < 9; ++i) {
    graph.ops[i].module = "net.layers." + std::to_string(i / 3) + ".mlp";
  }

  const Plan plan = MustPlan(
      graph, {.budget_bytes = 1'000'000, .strategy = Strategy::kPerBlock});

  ASSERT_TRUE(plan.feasible);
  // x_2 and x_5 leave their blocks and are kept.
  EXPECT_THAT(plan.recomputed_ops,
              testing::UnorderedElementsAre(0, 1, 3, 4, 6, 7, 8));
}

TEST(StrategyTest, ANamedPlanThatDoesNotFitSaysWhatItNeeds) {
  const StepGraph graph = Chain(30);

  const Plan plan =
      MustPlan(graph, {.budget_bytes = 200, .strategy = Strategy::kSaveAll});

  EXPECT_FALSE(plan.feasible);
  EXPECT_TRUE(plan.undecided);
  EXPECT_EQ(plan.infeasible.smallest_known_bytes, plan.base_peak_bytes);
}

TEST(StrategyTest, AGraphWithoutABackwardIsRunAsItIs) {
  StepGraph graph = Chain(5);
  for (Op& op : graph.ops) op.phase = Phase::kForward;

  for (const Strategy strategy :
       {Strategy::kMemory, Strategy::kSpeed, Strategy::kPerBlock}) {
    const Plan plan =
        MustPlan(graph, {.budget_bytes = 1000, .strategy = strategy});
    ASSERT_TRUE(plan.feasible);
    EXPECT_TRUE(plan.recomputed_ops.empty());
  }
}

TEST(StrategyTest, ThePortfolioIsNeverWorseThanANamedPlan) {
  for (const GraphKind kind :
       {GraphKind::kTransformer, GraphKind::kResNet, GraphKind::kUNet}) {
    const auto graph = Generate({.kind = kind, .ops = 300});
    ASSERT_TRUE(graph.ok());
    for (const Capabilities& capabilities :
         {Capabilities{}, TapeCapabilities()}) {
      const Problem problem = MakeProblem(*graph, capabilities);
      Generator generator(problem);
      for (const Archive::Point& candidate :
           StrategyCandidates(problem, Strategy::kAuto, generator)) {
        const auto evaluation = Evaluate(
            *graph,
            WithFrees(*graph, candidate.execs, capabilities.free_policy),
            capabilities);
        ASSERT_TRUE(evaluation.ok()) << evaluation.status().message();
        EXPECT_EQ(evaluation->peak_bytes, candidate.peak_bytes);

        const Plan plan =
            MustPlan(*graph, {.budget_bytes = candidate.peak_bytes,
                              .capabilities = capabilities,
                              .max_ticks = 300'000});

        ASSERT_TRUE(plan.feasible);
        EXPECT_LE(plan.evaluation.time_ns, candidate.time_ns)
            << candidate.solver;
      }
    }
  }
}

// Revolve's chain: the start x_0 stays (a `once` op makes it); step i makes x_i
// from x_(i-1) in 1 ns; its reversal reads x_(i-1) and a gradient.
StepGraph RevolveChain(int steps) {
  StepGraph graph;
  graph.storages.push_back({.bytes = 10});
  graph.ops.push_back({.kind = OpKind::kOnce, .writes = {0}});
  for (int i = 1; i <= steps; ++i) {
    graph.storages.push_back({.bytes = 10});
    graph.ops.push_back({.time_ns = 1, .reads = {i - 1}, .writes = {i}});
  }
  StorageId gradient = steps;
  for (int i = steps; i > 0; --i) {
    const StorageId next = graph.storage_count();
    graph.storages.push_back({.bytes = 10});
    graph.ops.push_back({.time_ns = 2,
                         .phase = Phase::kBackward,
                         .reads = {i - 1, gradient},
                         .writes = {next}});
    gradient = next;
  }
  graph.required = {gradient};
  return graph;
}

// s slots, the running value, and two gradients of the reversal. The sweep to
// the last step is not recomputation: it runs in any case.
TEST(ChainPlanTest, EqualsRevolveOnUniformChains) {
  for (const auto& [steps, slots] :
       std::vector<std::pair<int, int>>{{16, 3},
                                        {16, 5},
                                        {40, 4},
                                        {60, 6},
                                        {100, 5},
                                        {100, 10},
                                        {100, 20},
                                        {1000, 10},
                                        {1000, 30},
                                        {5000, 40},
                                        {10000, 100}}) {
    const StepGraph graph = RevolveChain(steps);
    const Problem problem = MakeProblem(graph, {});
    const int64_t budget = 10 * (slots + 3);
    const std::function<bool()> never;
    Effort effort(200'000'000, never);
    Generator generator(problem);

    int64_t best = Rotor::kImpossible;
    for (const Archive::Point& schedule :
         ChainSchedules(problem).For(budget, generator, effort)) {
      if (schedule.peak_bytes > budget) continue;
      best = std::min(best, schedule.time_ns - problem.base.time_ns);
    }

    EXPECT_LE(best, RevolveForwardSteps(steps, slots) - (steps - 1))
        << steps << " steps, " << slots << " slots";
  }
}

TEST(ChainPlanTest, ThePortfolioHasTheseSchedules) {
  struct {
    int steps, slots;
    int64_t ticks;
  } const chains[] = {{16, 3, 2'000'000},
                      {60, 4, 2'000'000},
                      {300, 8, 2'000'000},
                      // Unwinding takes all of it, and finds nothing.
                      {3000, 30, 30'000'000}};
  for (const auto& [steps, slots, ticks] : chains) {
    const StepGraph graph = RevolveChain(steps);

    const Plan plan =
        MustPlan(graph, {.budget_bytes = 10 * (slots + 3), .max_ticks = ticks});

    ASSERT_TRUE(plan.feasible) << steps << " steps, " << slots << " slots";
    EXPECT_LE(plan.evaluation.time_ns - plan.base_time_ns,
              RevolveForwardSteps(steps, slots) - (steps - 1));
  }
}

}  // namespace
}  // namespace reprise::planner
