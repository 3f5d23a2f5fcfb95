// SPDX-License-Identifier: Apache-2.0
#include "planner/search/join_bursts.h"

#include <gtest/gtest.h>

#include <functional>

#include "bench/generate/generate.h"
#include "planner/bounds/window_bound.h"
#include "planner/model/evaluate.h"
#include "planner/planner.h"
#include "tests/planner/oracle.h"
#include "tests/planner/random_graph.h"

namespace reprise::planner {
namespace {

const std::function<bool()> kNever;
constexpr int64_t kMany = int64_t{1} << 60;

StatusOr<Evaluation> Replay(const Problem& problem,
                            const std::vector<OpId>& execs) {
  return Evaluate(
      *problem.graph,
      WithFrees(*problem.graph, execs, problem.capabilities.free_policy),
      problem.capabilities);
}

TEST(JoinBurstsTest, KeepsTheBudgetAndIsNeverSlowerInGraphsWithEveryFeature) {
  Random random(23);
  int tried = 0, faster = 0;
  for (int i = 0; i < 2000; ++i) {
    StepGraph graph = RandomGraph(random, 16);
    if (random.Percent(30)) LimitReplayPoints(graph, random);
    if (random.Percent(30)) LimitReplays(graph, random);
    const Capabilities capabilities = RandomCapabilities(random);
    const Problem problem = MakeProblem(graph, capabilities);
    SCOPED_TRACE("graph " + std::to_string(i));
    // A poor schedule: that of a smaller budget.
    const int64_t budget = problem.base.peak_bytes * 8 / 10;
    const auto plan = MakePlan(graph, {.budget_bytes = budget * 9 / 10,
                                       .capabilities = capabilities,
                                       .max_ticks = 20'000});
    ASSERT_TRUE(plan.ok());
    if (!plan->feasible) continue;
    const std::vector<OpId> execs = ExecsOf(plan->schedule);
    const auto before = Replay(problem, execs);
    ASSERT_TRUE(before.ok());
    ++tried;
    Effort effort(kMany, kNever);
    const auto at = static_cast<OpId>(random.Below(problem.op_count));
    const double price = 1 + random.Below(100);
    const auto after = Replay(
        problem, JoinBursts(problem, budget, at, price, execs, kMany, effort));
    ASSERT_TRUE(after.ok()) << after.status().message();
    EXPECT_LE(after->peak_bytes, budget);
    EXPECT_LE(after->time_ns, before->time_ns);
    faster += after->time_ns < before->time_ns;
  }
  EXPECT_GT(tried, 100);
  EXPECT_GT(faster, 0);
}

TEST(JoinBurstsTest, ShortensTheScheduleOfALongStepWithoutFittingSegments) {
  const auto graph = Generate({.kind = GraphKind::kUNet, .ops = 2000});
  ASSERT_TRUE(graph.ok());
  const Problem problem = MakeProblem(*graph, {});
  const int64_t budget = problem.static_bytes +
                         (problem.base.peak_bytes - problem.static_bytes) / 5;
  const auto plan = MakePlan(*graph, {.budget_bytes = budget,
                                      .max_ticks = 60'000'000,
                                      .without = {"joined-bursts", "segments"},
                                      .reduce = false});
  ASSERT_TRUE(plan.ok());
  ASSERT_TRUE(plan->feasible);
  const auto at = static_cast<OpId>(problem.first_backward);
  const WindowResult window = WindowBound(problem, at).Solve(budget);
  ASSERT_TRUE(window.has_rich_set);
  Effort effort(kMany, kNever);
  const auto joined =
      Replay(problem, JoinBursts(problem, budget, at, PriceOf(window),
                                 ExecsOf(plan->schedule), kMany, effort));
  ASSERT_TRUE(joined.ok());
  EXPECT_LE(joined->peak_bytes, budget);
  // A tenth of what it lacks to the bound, at least.
  const int64_t added = plan->evaluation.time_ns - problem.base.time_ns;
  EXPECT_LT(joined->time_ns,
            plan->evaluation.time_ns - (added - window.added_ns) / 10);
}

TEST(JoinBurstsTest, AnInterruptedSearchKeepsWhatItHas) {
  const auto graph = Generate({.kind = GraphKind::kUNet, .ops = 400});
  ASSERT_TRUE(graph.ok());
  const Problem problem = MakeProblem(*graph, {});
  const int64_t budget = problem.base.peak_bytes / 2;
  const auto plan =
      MakePlan(*graph, {.budget_bytes = budget, .max_ticks = 2'000'000});
  ASSERT_TRUE(plan.ok());
  ASSERT_TRUE(plan->feasible);
  for (const int64_t ticks : {0, 1'000, 30'000, 200'000}) {
    Effort effort(kMany, kNever);
    const auto joined =
        Replay(problem, JoinBursts(problem, budget, problem.first_backward, 1.0,
                                   ExecsOf(plan->schedule), ticks, effort));
    ASSERT_TRUE(joined.ok());
    EXPECT_LE(joined->peak_bytes, budget);
    EXPECT_LE(joined->time_ns, plan->evaluation.time_ns);
  }
}

}  // namespace
}  // namespace reprise::planner
