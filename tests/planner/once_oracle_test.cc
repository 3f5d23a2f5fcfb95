// SPDX-License-Identifier: Apache-2.0
//
// Plans of executors of kind `once` against brute force over every set of saved
// storages. It checks 60 graphs of at most 4 forward ops;
// REPRISE_ORACLE_GRAPHS=10000 checks more, and oracle_graphs.h explains how to
// split the work.
#include "tests/planner/once_oracle.h"

#include <gtest/gtest.h>

#include <string>

#include "planner/bounds/screen.h"
#include "planner/once/once.h"
#include "planner/planner.h"
#include "tests/planner/oracle_graphs.h"
#include "tests/planner/random_graph.h"

namespace reprise::planner {
namespace {

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

TEST(OnceOracleTest, TheBoundIsNeverAboveAndThePlanNeverBelowTheOptimum) {
  OracleShares shares;
  for (const int i : OracleGraphs(60)) {
    Random random = OracleRandom(11, i);
    const StepGraph graph = RandomStep(random);
    Capabilities capabilities = RandomCapabilities(random);
    capabilities.execution = Execution::kOnce;
    capabilities.max_runs = 0;
    capabilities = WithExecution(capabilities);
    const Problem problem = MakeProblem(graph, capabilities);
    const int64_t least = LargestWorkingSet(problem).smallest_budget_bytes;
    const int64_t budget = least + random.Below(std::max<int64_t>(
                                       1, problem.base.peak_bytes - least));
    SCOPED_TRACE("graph " + std::to_string(i) + " budget " +
                 std::to_string(budget));

    const auto best = BestSavedNs(graph, capabilities, budget);
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
    const int64_t optimum = *best - problem.base.time_ns;
    EXPECT_LE(plan->bound * static_cast<double>(problem.base.time_ns),
              static_cast<double>(optimum) + 1e-6);
    if (!plan->feasible) continue;
    ++shares.found;
    EXPECT_TRUE(EvaluateOnce(problem, plan->schedule).ok());
    const int64_t added = plan->evaluation.time_ns - problem.base.time_ns;
    EXPECT_GE(added, optimum);
    shares.optimal += added == optimum;
    if (added != optimum) shares.Missed(i, budget);
  }
  shares.Expect99Percent();
}

}  // namespace
}  // namespace reprise::planner
