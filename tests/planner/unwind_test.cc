// SPDX-License-Identifier: Apache-2.0
#include "planner/construct/unwind.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>

#include "planner/bounds/screen.h"
#include "planner/model/evaluate.h"
#include "planner/model/random.h"
#include "planner/planner.h"
#include "tests/planner/random_graph.h"
#include "tests/planner/tangle.h"

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

// a makes x 4, b reads x and makes y 8, c reads y and makes z 1, d reads x and
// z.
StepGraph Four() {
  StepGraph graph;
  graph.storages = {{.bytes = 4}, {.bytes = 8}, {.bytes = 1}, {.bytes = 1}};
  graph.ops = {{.time_ns = 1, .writes = {0}},
               {.time_ns = 1, .reads = {0}, .writes = {1}},
               {.time_ns = 1, .reads = {1}, .writes = {2}},
               {.time_ns = 1, .reads = {0, 2}, .writes = {3}}};
  graph.required = {3};
  return graph;
}

TEST(UnwindTest, MakesAValueAgainWhereItsMemoryIsNeeded) {
  // While c runs, x waits for d: 4 + 8 + 1 = 13. Without it c needs 9 and b 12.
  const StepGraph graph = Four();
  const Problem problem = MakeProblem(graph, {});
  Effort effort(1'000'000, kNever);

  const auto execs =
      Unwind(problem, {.budget_bytes = 12, .mark_percent = 100}, effort);

  EXPECT_EQ(execs, (std::vector<OpId>{0, 1, 2, 0, 3}));
}

TEST(UnwindTest, LeavesTheBaseOrderAloneWhereItFits) {
  const StepGraph graph = Four();
  const Problem problem = MakeProblem(graph, {});
  Effort effort(1'000'000, kNever);

  const auto execs =
      Unwind(problem, {.budget_bytes = 13, .mark_percent = 100}, effort);

  EXPECT_EQ(execs, (std::vector<OpId>{0, 1, 2, 3}));
}

TEST(UnwindTest, FindsNothingWhereAnOpThatRunsOnceHasToWait) {
  StepGraph graph = Four();
  graph.ops[0].kind = OpKind::kOnce;
  const Problem problem = MakeProblem(graph, {});
  Effort effort(1'000'000, kNever);

  const auto execs =
      Unwind(problem, {.budget_bytes = 12, .mark_percent = 100}, effort);

  EXPECT_TRUE(execs.empty());
}

TEST(UnwindTest, RunsAnOpAgainOfWhichAnotherOutputIsPinned) {
  // a also makes p 1, which stays: 4 + 8 + 1 + 1 = 14 without a second run, and
  // 13 with one, at b.
  StepGraph graph = Four();
  graph.storages.push_back({.bytes = 1, .pinned = true});
  graph.ops[0].writes.push_back(4);
  graph.required.push_back(4);
  for (const bool twice : {false, true}) {
    const Problem problem = MakeProblem(graph, {.duplicate_outputs = twice});
    Effort effort(1'000'000, kNever);

    const auto execs =
        Unwind(problem, {.budget_bytes = 13, .mark_percent = 100}, effort);

    EXPECT_EQ(execs, (std::vector<OpId>{0, 1, 2, 0, 3}));
    const auto evaluation = Replay(problem, execs);
    ASSERT_TRUE(evaluation.ok()) << evaluation.status().message();
    EXPECT_EQ(evaluation->peak_bytes, 13);
  }
}

TEST(UnwindTest, KeepsWhatIsPinned) {
  Random random(9);
  int found = 0;
  for (int i = 0; i < 60; ++i) {
    StepGraph graph = PureTangle(random, 50);
    for (Storage& storage : graph.storages) {
      storage.pinned = random.Percent(20);
    }
    const Problem problem =
        MakeProblem(graph, {.duplicate_outputs = random.Percent(50)});
    const int64_t budget =
        problem.base.peak_bytes * (75 + random.Below(25)) / 100;
    Effort effort(kMany, kNever);
    const auto execs = Unwind(
        problem, {.budget_bytes = budget, .most_ticks = 2'000'000}, effort);
    if (execs.empty()) continue;

    const auto evaluation = Replay(problem, execs);

    ASSERT_TRUE(evaluation.ok())
        << "graph " << i << ": " << evaluation.status().message();
    found += evaluation->peak_bytes <= budget;
  }
  EXPECT_GE(found, 20);
}

TEST(UnwindTest, KeepsBudgetsCloseToTheLargestWorkingSet) {
  Random random(7);
  int found = 0;
  for (int i = 0; i < 40; ++i) {
    const StepGraph graph = PureTangle(random, 60);
    const Problem problem = MakeProblem(graph, {});
    const int64_t least = LargestWorkingSet(problem).smallest_budget_bytes;
    const int64_t budget =
        least + (problem.base.peak_bytes - least) * random.Below(60) / 100;
    Effort effort(kMany, kNever);
    for (const int mark_percent : {95, 90, 85, 75, 50}) {
      const auto execs = Unwind(problem,
                                {.budget_bytes = budget,
                                 .mark_percent = mark_percent,
                                 .by_distance = random.Percent(50),
                                 .most_ticks = 2'000'000},
                                effort);
      if (execs.empty()) continue;
      ++found;
      const auto evaluation = Replay(problem, execs);
      ASSERT_TRUE(evaluation.ok()) << evaluation.status().message();
      ASSERT_LE(evaluation->peak_bytes, budget) << "graph " << i;
      break;
    }
  }
  EXPECT_GE(found, 28);
}

TEST(UnwindTest, FollowsTheRulesOfExecutors) {
  Random random(8);
  int found = 0;
  for (int i = 0; i < 60; ++i) {
    StepGraph graph = Tangle(random, 50);
    for (int o = 25; o < 50; ++o) graph.ops[o].phase = Phase::kBackward;
    Capabilities capabilities;
    if (random.Percent(50)) capabilities.max_runs = 2 + random.Below(3);
    capabilities.recompute_in_backward_only = random.Percent(50);
    const Problem problem = MakeProblem(graph, capabilities);
    ASSERT_TRUE(IsPlain(problem));
    const int64_t budget =
        problem.base.peak_bytes * (75 + random.Below(25)) / 100;
    Effort effort(kMany, kNever);
    const auto execs = Unwind(
        problem, {.budget_bytes = budget, .most_ticks = 2'000'000}, effort);
    if (execs.empty()) continue;
    ++found;

    const auto evaluation = Replay(problem, execs);

    ASSERT_TRUE(evaluation.ok())
        << "graph " << i << ": " << evaluation.status().message();
    ASSERT_LE(evaluation->peak_bytes, budget) << "graph " << i;
  }
  EXPECT_GE(found, 20);
}

// a makes x 4, b changes x and makes z 8, c reads z and makes u 1, d reads x
// and u. While c runs, x waits for d: 4 + 8 + 1 = 13.
TEST(UnwindTest, MakesAVersionAgainFromItsWriterOn) {
  StepGraph graph;
  graph.storages = {{.bytes = 4}, {.bytes = 8}, {.bytes = 1}, {.bytes = 1}};
  graph.ops = {{.time_ns = 1, .writes = {0}},
               {.time_ns = 1, .reads = {0}, .mutates = {0}},
               {.time_ns = 1, .writes = {1}},
               {.time_ns = 1, .reads = {1}, .writes = {2}},
               {.time_ns = 1, .reads = {0, 2}, .writes = {3}}};
  graph.required = {3};
  const Problem problem = MakeProblem(graph, {});
  Effort effort(1'000'000, kNever);

  const auto execs =
      Unwind(problem, {.budget_bytes = 12, .mark_percent = 100}, effort);

  EXPECT_EQ(execs, (std::vector<OpId>{0, 1, 2, 3, 0, 1, 4}));
}

TEST(UnwindTest, HoldsWhatTheProgramHoldsAndGeneratorStates) {
  StepGraph graph = Four();
  graph.storages[0].release_op = 2;
  const Problem held =
      MakeProblem(graph, {.free_policy = FreePolicy::kProgram});
  Effort effort(1'000'000, kNever);

  // The program holds x while c runs, whatever the plan does.
  EXPECT_TRUE(
      Unwind(held, {.budget_bytes = 12, .mark_percent = 100}, effort).empty());

  // Without x, b needs 12 and c 9, each plus the generator state of a until a
  // has run again.
  graph = Four();
  graph.ops[0].kind = OpKind::kSeeded;
  graph.ops[0].state_bytes = 1;
  const Problem seeded = MakeProblem(graph, {.seeded_ok = true});
  EXPECT_TRUE(Unwind(seeded, {.budget_bytes = 12, .mark_percent = 100}, effort)
                  .empty());
  graph.storages[2].bytes = 3;
  const Problem larger = MakeProblem(graph, {.seeded_ok = true});
  const auto execs =
      Unwind(larger, {.budget_bytes = 13, .mark_percent = 100}, effort);
  EXPECT_EQ(execs, (std::vector<OpId>{0, 1, 2, 0, 3}));
}

TEST(UnwindTest, SchedulesOfGraphsWithEveryFeatureAreValid) {
  Random random(10);
  int found = 0;
  int again = 0;
  for (int i = 0; i < 4000; ++i) {
    const StepGraph graph = RandomGraph(random, 14);
    Capabilities capabilities = RandomCapabilities(random);
    capabilities.duplicate_outputs = false;
    const Problem problem = MakeProblem(graph, capabilities);
    const int64_t least = LargestWorkingSet(problem).smallest_budget_bytes;
    const int64_t budget =
        least + random.Below(problem.base.peak_bytes - least + 1);
    Effort effort(kMany, kNever);
    const auto execs = Unwind(problem,
                              {.budget_bytes = budget,
                               .mark_percent = 70 + random.Below(31),
                               .by_distance = random.Percent(50),
                               .most_ticks = 2'000'000},
                              effort);
    if (execs.empty()) continue;
    ++found;
    again += execs.size() > graph.ops.size();

    const auto evaluation = Replay(problem, execs);

    ASSERT_TRUE(evaluation.ok())
        << "graph " << i << ": " << evaluation.status().message();
    ASSERT_LE(evaluation->peak_bytes, budget) << "graph " << i;
  }
  EXPECT_GE(found, 2000);
  EXPECT_GE(again, 300);
}

TEST(UnwindTest, EndsWithItsTicks) {
  Random random(9);
  const StepGraph graph = PureTangle(random, 200);
  const Problem problem = MakeProblem(graph, {});
  const int64_t budget = LargestWorkingSet(problem).smallest_budget_bytes;
  Effort effort(kMany, kNever);

  Unwind(problem, {.budget_bytes = budget, .most_ticks = 100'000}, effort);

  // It may overrun its ticks by one reduction.
  EXPECT_LT(effort.ticks(), 1'000'000);
}

}  // namespace
}  // namespace reprise::planner
