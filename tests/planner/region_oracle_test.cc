// SPDX-License-Identifier: Apache-2.0
//
// Plans of executors with regions against brute force over every plan that they
// can run. Each test checks 60 graphs of at most 4 forward ops per kind of
// executor; REPRISE_ORACLE_GRAPHS=10000 checks more, and oracle_graphs.h
// explains how to split the work.
#include "tests/planner/region_oracle.h"

#include <gtest/gtest.h>

#include <string>

#include "planner/bounds/screen.h"
#include "planner/planner.h"
#include "planner/regions/regions.h"
#include "tests/planner/oracle_graphs.h"
#include "tests/planner/random_graph.h"

namespace reprise::planner {
namespace {

struct Kind {
  const char* name;
  Execution execution;
  int max_runs;
  bool lazy;
};

// A graph with something to decide: 2 to 4 forward ops and a backward.
StepGraph RandomStep(Random& random) {
  for (;;) {
    StepGraph graph = RandomGraph(random, 9);
    const int forward = ForwardOps(graph);
    if (forward >= 2 && forward <= 4 && forward < graph.op_count()) {
      return graph;
    }
  }
}

class RegionOracleTest : public testing::TestWithParam<Kind> {};

TEST_P(RegionOracleTest, TheBoundIsNeverAboveAndThePlanNeverBelowTheOptimum) {
  OracleShares shares;
  for (const int i : OracleGraphs(60)) {
    Random random = OracleRandom(11, i);
    const StepGraph graph = RandomStep(random);
    Capabilities capabilities = RandomCapabilities(random);
    capabilities.execution = GetParam().execution;
    capabilities.max_runs = GetParam().max_runs;
    capabilities.lazy_region = GetParam().lazy;
    capabilities = WithExecution(capabilities);
    const Problem problem = MakeProblem(graph, capabilities);
    const int64_t least = LargestWorkingSet(problem).smallest_budget_bytes;
    const int64_t budget = least + random.Below(std::max<int64_t>(
                                       1, problem.base.peak_bytes - least));
    SCOPED_TRACE("graph " + std::to_string(i) + " budget " +
                 std::to_string(budget));

    const auto best = BestRegions(graph, capabilities, budget);
    const auto plan = MakePlan(graph, {.budget_bytes = budget,
                                       .capabilities = capabilities,
                                       .target_gap = 0,
                                       .max_ticks = 300'000});

    ASSERT_TRUE(plan.ok()) << plan.status().message();
    if (!best.has_value()) {
      EXPECT_FALSE(plan->feasible);
      continue;
    }
    ++shares.feasible;
    ASSERT_TRUE(plan->feasible || plan->undecided);
    const int64_t optimum = best->time_ns - problem.base.time_ns;
    EXPECT_LE(plan->bound * static_cast<double>(problem.base.time_ns),
              static_cast<double>(optimum) + 1e-6);
    if (!plan->feasible) continue;
    ++shares.found;
    EXPECT_TRUE(EvaluateRegions(problem, plan->schedule, plan->regions).ok());
    const int64_t added = plan->evaluation.time_ns - problem.base.time_ns;
    EXPECT_GE(added, optimum);
    shares.optimal += added == optimum;
    if (added != optimum) shares.Missed(i, budget);
  }
  shares.Expect99Percent();
}

INSTANTIATE_TEST_SUITE_P(
    Executors, RegionOracleTest,
    testing::Values(Kind{"Once", Execution::kOnce, 0, false},
                    Kind{"Flat", Execution::kNested, 2, false},
                    Kind{"Nested", Execution::kNested, 0, false},
                    Kind{"NestedLazy", Execution::kNested, 0, true}),
    [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace reprise::planner
