// SPDX-License-Identifier: Apache-2.0
#include "formats/solve/solve_plan.h"

#include <gtest/gtest.h>

#include <atomic>

#include "bench/generate/generate.h"

namespace reprise::formats {
namespace {

using planner::Evaluate;
using planner::GraphKind;
using planner::Plan;
using planner::Request;
using planner::StepGraph;

// A random layered graph at 60 % of its memory, for which no search finds the
// optimum at once.
struct Job {
  StepGraph graph;
  Request request;
};
Job LayeredJob() {
  Job job;
  job.graph = *planner::Generate({.kind = GraphKind::kLayered, .ops = 300});
  const auto base = Evaluate(
      job.graph, planner::BaseSchedule(job.graph, planner::FreePolicy::kEager),
      {});
  job.request.budget_bytes =
      job.graph.static_bytes +
      (base->peak_bytes - job.graph.static_bytes) / 10 * 6;
  job.request.target_gap = 0;
  job.request.max_ticks = 5'000'000;
  return job;
}

TEST(SolvePlanTest, IsTheSameOnAnyNumberOfThreads) {
  const Job job = LayeredJob();

  const auto one =
      SolvePlan(job.graph, job.request, {.threads = 1, .searches = 4});
  ASSERT_TRUE(one.ok()) << one.status().message();
  for (const int threads : {2, 8}) {
    const auto more =
        SolvePlan(job.graph, job.request, {.threads = threads, .searches = 4});

    ASSERT_TRUE(more.ok()) << more.status().message();
    EXPECT_EQ(more->schedule, one->schedule) << threads;
    EXPECT_EQ(more->bound, one->bound) << threads;
    EXPECT_EQ(more->ticks, one->ticks) << threads;
  }
}

TEST(SolvePlanTest, IsAtLeastAsGoodAsEachOfItsSearches) {
  const Job job = LayeredJob();

  const auto alone = planner::MakePlan(job.graph, job.request);
  const auto several =
      SolvePlan(job.graph, job.request, {.threads = 2, .searches = 3});

  ASSERT_TRUE(alone.ok() && several.ok());
  ASSERT_TRUE(alone->feasible && several->feasible);
  EXPECT_LE(several->overhead, alone->overhead);
  EXPECT_GE(several->bound, alone->bound);
  const auto replayed = Evaluate(job.graph, several->schedule, {});
  ASSERT_TRUE(replayed.ok()) << replayed.status().message();
  EXPECT_LE(replayed->peak_bytes, job.request.budget_bytes);
}

TEST(SolvePlanTest, EndsEverySearchWhenAskedTo) {
  Job job = LayeredJob();
  job.request.until_stopped = true;
  std::atomic<int> asked = 0;
  job.request.should_stop = [&] { return ++asked > 400; };

  const auto plan = SolvePlan(job.graph, job.request, {.threads = 3});

  ASSERT_TRUE(plan.ok()) << plan.status().message();
  EXPECT_TRUE(plan->feasible);
  EXPECT_TRUE(plan->interrupted || plan->proven_optimal);
  EXPECT_GT(plan->ticks, job.request.max_ticks);
}

// A search stops the others once plan and bound meet; its proof must still be
// checked by the verifier.
TEST(SolvePlanTest, AnOptimumThatThreadsFindTogetherIsCheckedToo) {
  Job job = LayeredJob();
  job.request.until_stopped = true;
  job.request.target_gap = 0;
  job.request.max_ticks = 0;
  std::atomic<int> asked = 0;
  job.request.should_stop = [&] { return ++asked > 1'000'000; };

  const auto plan = SolvePlan(job.graph, job.request, {.threads = 2});

  ASSERT_TRUE(plan.ok()) << plan.status().message();
  ASSERT_TRUE(plan->is_optimal);
  EXPECT_TRUE(plan->proven_optimal);
}

TEST(SolvePlanTest, ReportsTheBestOfAllSearches) {
  const Job job = LayeredJob();
  Request request = job.request;
  double overhead = 1e9, bound = 0;
  bool worse = false;
  request.on_progress = [&](const planner::Progress& progress) {
    if (progress.overhead >= 0) {
      worse = worse || progress.overhead > overhead;
      overhead = progress.overhead;
    }
    worse = worse || progress.bound < bound;
    bound = progress.bound;
  };

  const auto plan =
      SolvePlan(job.graph, request, {.threads = 2, .searches = 4});

  ASSERT_TRUE(plan.ok());
  EXPECT_FALSE(worse);
  EXPECT_LT(overhead, 1e9);
}

TEST(SolvePlanTest, ImpossibleIsImpossibleForAll) {
  Job job = LayeredJob();
  job.request.budget_bytes = job.graph.static_bytes + 1;

  const auto plan =
      SolvePlan(job.graph, job.request, {.threads = 2, .searches = 3});

  ASSERT_TRUE(plan.ok());
  EXPECT_FALSE(plan->feasible);
  EXPECT_FALSE(plan->undecided);
  EXPECT_GT(plan->infeasible.smallest_budget_bytes, job.request.budget_bytes);
}

TEST(SolvePlanTest, RefusesThreadsThatCannotBe) {
  const Job job = LayeredJob();

  const auto none = SolvePlan(job.graph, job.request, {.threads = 0});
  const auto endless = [&] {
    Request request = job.request;
    request.until_stopped = true;
    return SolvePlan(job.graph, request, {.threads = 2});
  }();

  EXPECT_EQ(none.status().code(), Code::kInvalidArgument);
  EXPECT_EQ(endless.status().code(), Code::kInvalidArgument);
}

}  // namespace
}  // namespace reprise::formats
