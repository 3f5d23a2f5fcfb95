// SPDX-License-Identifier: Apache-2.0
//
// Neighbourhoods of schedules against the evaluator, brute force and plans that
// are proven to be optimal. Where the build has no CBC, schedules must stay as
// they are.
#include "planner/search/neighbourhood.h"

#include <gtest/gtest.h>

#include <numeric>
#include <string>

#include "bench/generate/generate.h"
#include "planner/model/flags.h"
#include "planner/planner.h"
#include "tests/planner/oracle.h"
#include "tests/planner/oracle_graphs.h"
#include "tests/planner/random_graph.h"

namespace reprise::planner {
namespace {

constexpr int64_t kTicks = 1'000'000'000;
// Of plans that need not be good.
constexpr int64_t kFewTicks = 5'000'000;

// Improves a list of execs and returns what became of it.
std::vector<OpId> Improve(const Problem& problem, int64_t budget,
                          std::vector<OpId> execs, int64_t good_enough_ns = 0,
                          const std::function<bool()>& should_stop = {}) {
  Archive archive;
  Effort effort(kTicks, should_stop);
  SearchNeighbourhoods(problem, FindBlocks(problem),
                       {.budget_bytes = budget,
                        .ticks = kTicks,
                        .good_enough_ns = good_enough_ns},
                       execs, archive, effort);
  return execs;
}

StatusOr<Evaluation> Replay(const Problem& problem,
                            const std::vector<OpId>& execs) {
  return Evaluate(
      *problem.graph,
      WithFrees(*problem.graph, execs, problem.capabilities.free_policy),
      problem.capabilities);
}

std::vector<OpId> ExecsOf(const Schedule& schedule) {
  std::vector<OpId> execs;
  for (const Entry& entry : schedule) {
    if (entry.kind == Entry::Kind::kExec) execs.push_back(entry.id);
  }
  return execs;
}

// A schedule of random flags, valid and smaller than the base order; empty
// where there is none.
std::vector<OpId> PoorSchedule(const Problem& problem, Random& random,
                               int64_t& peak_bytes) {
  Generator generator(problem);
  for (int tries = 0; tries < 20; ++tries) {
    Flags flags = BaseFlags(problem);
    for (int32_t f = 0; f < problem.flag_count(); ++f) {
      if (problem.flag_fixed[f] == 0 && random.Percent(40)) {
        flags[f] = static_cast<Retention>(random.Below(3));
      }
    }
    const Generated generated = generator.Generate(flags);
    if (!generated.valid) continue;
    if (generated.peak_bytes >= problem.base.peak_bytes) continue;
    peak_bytes = generated.peak_bytes;
    return generator.execs();
  }
  return {};
}

TEST(NeighbourhoodTest, WhatItFindsReplaysFitsAndIsMostlyTheOptimum) {
  int poor = 0, optimal = 0;
  for (const int i : OracleGraphs(500)) {
    Random random = OracleRandom(31, i);
    const StepGraph graph = RandomGraph(random, 9);
    const Capabilities capabilities =
        i % 2 == 0 ? Capabilities{} : RandomCapabilities(random);
    const Problem problem = MakeProblem(graph, capabilities);
    int64_t budget = 0;
    const std::vector<OpId> before = PoorSchedule(problem, random, budget);
    if (before.empty()) continue;
    const auto start = Replay(problem, before);
    ASSERT_TRUE(start.ok()) << "graph " << i;
    const auto best = BestSchedule(graph, capabilities, budget);
    ASSERT_TRUE(best.has_value()) << "graph " << i;

    const std::vector<OpId> after = Improve(problem, budget, before);

    const auto end = Replay(problem, after);
    ASSERT_TRUE(end.ok()) << "graph " << i << ": " << end.status().message();
    EXPECT_LE(end->peak_bytes, budget) << "graph " << i;
    EXPECT_LE(end->time_ns, start->time_ns) << "graph " << i;
    EXPECT_GE(end->time_ns, best->time_ns) << "graph " << i;
    if (start->time_ns == best->time_ns) continue;
    ++poor;
    optimal += end->time_ns == best->time_ns;
  }
  std::printf("of %d poor schedules %d became the best\n", poor, optimal);
  if (!MipAvailable()) return;
  EXPECT_GE(optimal * 100, poor * 95);
}

struct Named {
  GraphKind kind;
  int ops;
  int percent, poor_percent;  // of dynamic memory
};

TEST(NeighbourhoodTest, FindsTheOptimumOfNamedStepsFromPlansForLessMemory) {
  if (!MipAvailable()) GTEST_SKIP() << "the build has no CBC";
  for (const Named& named : {Named{GraphKind::kTransformer, 100, 80, 55},
                             Named{GraphKind::kResNet, 100, 90, 70},
                             Named{GraphKind::kMoe, 150, 90, 80},
                             Named{GraphKind::kDiffusionUNet, 150, 90, 75}}) {
    const auto graph = Generate({.kind = named.kind, .ops = named.ops});
    ASSERT_TRUE(graph.ok());
    const std::string name(GraphKindNames()[static_cast<size_t>(named.kind)]);
    const Capabilities capabilities{.seeded_ok = true};
    const Problem problem = MakeProblem(*graph, capabilities);
    const auto budget_of = [&](int percent) {
      return problem.static_bytes +
             (problem.base.peak_bytes - problem.static_bytes) / 100 * percent;
    };
    const int64_t budget = budget_of(named.percent);
    const auto best = MakePlan(*graph, {.budget_bytes = budget,
                                        .capabilities = capabilities,
                                        .target_gap = 0});
    const auto poor =
        MakePlan(*graph, {.budget_bytes = budget_of(named.poor_percent),
                          .capabilities = capabilities,
                          .max_ticks = kFewTicks});
    ASSERT_TRUE(best.ok() && best->proven_optimal) << name;
    ASSERT_TRUE(poor.ok() && poor->feasible) << name;
    ASSERT_GT(poor->evaluation.time_ns, best->evaluation.time_ns) << name;

    const std::vector<OpId> after = Improve(
        problem, budget, ExecsOf(poor->schedule), best->evaluation.time_ns);

    const auto end = Replay(problem, after);
    ASSERT_TRUE(end.ok()) << name;
    EXPECT_LE(end->peak_bytes, budget) << name;
    EXPECT_EQ(end->time_ns, best->evaluation.time_ns) << name;
  }
}

TEST(NeighbourhoodTest, GivesTheSameScheduleEveryTime) {
  const auto graph = Generate({.kind = GraphKind::kResNet, .ops = 150});
  ASSERT_TRUE(graph.ok());
  const auto poor =
      MakePlan(*graph, {.budget_bytes = graph->static_bytes + 400'000'000,
                        .max_ticks = kFewTicks});
  ASSERT_TRUE(poor.ok() && poor->feasible);
  const Problem problem = MakeProblem(*graph, {});
  const int64_t budget = poor->evaluation.peak_bytes * 11 / 10;

  const auto one = Improve(problem, budget, ExecsOf(poor->schedule));
  const auto two = Improve(problem, budget, ExecsOf(poor->schedule));

  EXPECT_EQ(one, two);
}

TEST(NeighbourhoodTest, LeavesTheScheduleAloneWhenToldToStop) {
  const auto graph = Generate({.kind = GraphKind::kUNet, .ops = 100});
  ASSERT_TRUE(graph.ok());
  const Problem problem = MakeProblem(*graph, {});
  const auto poor = MakePlan(
      *graph,
      {.budget_bytes = problem.base.peak_bytes / 2, .max_ticks = kFewTicks});
  ASSERT_TRUE(poor.ok() && poor->feasible);
  const std::vector<OpId> before = ExecsOf(poor->schedule);

  const auto after = Improve(problem, problem.base.peak_bytes, before,
                             /*good_enough_ns=*/0, [] { return true; });

  EXPECT_EQ(after, before);
}

TEST(NeighbourhoodTest, DropsEveryRerunWhereTheBaseOrderFits) {
  if (!MipAvailable()) GTEST_SKIP() << "the build has no CBC";
  const auto graph = Generate({.kind = GraphKind::kUNet, .ops = 100});
  ASSERT_TRUE(graph.ok());
  const Problem problem = MakeProblem(*graph, {});
  const auto poor = MakePlan(
      *graph,
      {.budget_bytes = problem.base.peak_bytes / 2, .max_ticks = kFewTicks});
  ASSERT_TRUE(poor.ok() && poor->feasible);

  const auto after =
      Improve(problem, problem.base.peak_bytes, ExecsOf(poor->schedule));

  std::vector<OpId> base(graph->op_count());
  std::iota(base.begin(), base.end(), 0);
  EXPECT_EQ(after, base);
}

}  // namespace
}  // namespace reprise::planner
