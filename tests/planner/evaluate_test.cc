// SPDX-License-Identifier: Apache-2.0
#include "planner/model/evaluate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace reprise::planner {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// a: writes x (4).  b: x -> y (8).  c: changes y in place.  d: reads x, y.
StepGraph Small() {
  StepGraph graph;
  graph.static_bytes = 100;
  graph.storages = {{.bytes = 4}, {.bytes = 8}};
  graph.ops = {{.time_ns = 1, .writes = {0}},
               {.time_ns = 2, .reads = {0}, .writes = {1}},
               {.time_ns = 4, .reads = {1}, .mutates = {1}},
               {.time_ns = 8,
                .workspace_bytes = 3,
                .phase = Phase::kBackward,
                .reads = {0, 1}}};
  return graph;
}

std::string ErrorOf(const StepGraph& graph, const Schedule& schedule,
                    const Capabilities& capabilities = {}) {
  const auto evaluation = Evaluate(graph, schedule, capabilities);
  EXPECT_EQ(evaluation.status().code(), Code::kInvalidArgument);
  return evaluation.status().message();
}

TEST(EvaluateTest, InputsOutputsAndWorkspaceCountWhileAnOpRuns) {
  std::vector<MemoryPoint> profile;

  const auto evaluation = Evaluate(
      Small(), BaseSchedule(Small(), FreePolicy::kEager), {}, &profile);

  ASSERT_TRUE(evaluation.ok());
  // 100 + x 4 + y 8 + workspace 3
  EXPECT_EQ(evaluation->peak_bytes, 115);
  EXPECT_EQ(evaluation->peak_op, 3);
  EXPECT_EQ(evaluation->time_ns, 15);
  ASSERT_EQ(profile.size(), 4u);
  EXPECT_EQ(profile[0].bytes, 104);
  EXPECT_EQ(profile[3].start_ns, 7);
}

TEST(EvaluateTest, AReRunCostsItsTimeAndTheExecutorsPrice) {
  const Schedule schedule = {Exec(0), Exec(1), Exec(2), Free(1),
                             Exec(1), Exec(2), Exec(3)};

  const auto evaluation = Evaluate(Small(), schedule, {.ns_per_op = 10});

  ASSERT_TRUE(evaluation.ok()) << evaluation.status().message();
  EXPECT_EQ(evaluation->time_ns, 15 + 2 + 4 + 2 * 10);
}

TEST(EvaluateTest, AReRunMayTakeLessThanTheFirstRun) {
  StepGraph graph = Small();
  graph.ops[1].time_ns = 50;
  graph.ops[1].again_ns = 7;
  const Schedule schedule = {Exec(0), Exec(1), Exec(2), Free(1),
                             Exec(1), Exec(2), Exec(3)};

  const auto evaluation = Evaluate(graph, schedule, {.ns_per_op = 10});

  ASSERT_TRUE(evaluation.ok()) << evaluation.status().message();
  EXPECT_EQ(evaluation->time_ns, 1 + 50 + 4 + 8 + (7 + 10) + (4 + 10));
}

TEST(EvaluateTest, NamesOpStorageAndVersionsOfTheFirstError) {
  EXPECT_THAT(ErrorOf(Small(), {Exec(0), Exec(1), Exec(3)}),
              HasSubstr("op 3 runs for the first time before op 2"));
  EXPECT_THAT(ErrorOf(Small(), {Exec(0), Free(0), Exec(1)}),
              HasSubstr("op 1 needs storage 0 at version 1, but it is not "
                        "present"));
  EXPECT_THAT(ErrorOf(Small(), {Exec(0), Exec(1), Exec(2), Exec(2)}),
              HasSubstr("op 2 needs storage 1 at version 1, but version 2 is "
                        "present"));
  EXPECT_THAT(ErrorOf(Small(), {Exec(0), Exec(1), Exec(2), Exec(1)}),
              HasSubstr("op 1 writes storage 1, but version 2 is present"));
  EXPECT_THAT(ErrorOf(Small(), {Free(0)}), HasSubstr("not present"));
  EXPECT_THAT(ErrorOf(Small(), {Exec(9)}), HasSubstr("no op 9"));
  EXPECT_THAT(ErrorOf(Small(), {Free(-1)}), HasSubstr("no storage -1"));
  EXPECT_THAT(ErrorOf(Small(), {Exec(0)}), HasSubstr("op 1 never runs"));
}

TEST(EvaluateTest, RequiredStoragesMustBeThereAtTheirLastVersion) {
  StepGraph graph = Small();
  graph.required = {1};

  EXPECT_THAT(
      ErrorOf(graph, {Exec(0), Exec(1), Exec(2), Exec(3), Free(1), Exec(1)}),
      HasSubstr("storage 1 is required at version 2 at the end, but version 1 "
                "is present"));
}

TEST(EvaluateTest, KindsThatMustNotRunAgainAreRefused) {
  for (const OpKind kind :
       {OpKind::kOnce, OpKind::kSeeded, OpKind::kCollective}) {
    StepGraph graph = Small();
    graph.ops[0].kind = kind;
    EXPECT_THAT(ErrorOf(graph, {Exec(0), Free(0), Exec(0)}),
                HasSubstr("must not run again"));
  }
}

TEST(EvaluateTest, TheTapeRecomputesForwardOpsInTheBackwardOnly) {
  const Capabilities tape{.recompute_in_backward_only = true};
  const Schedule late = {Exec(0), Exec(1), Exec(2), Free(0), Exec(0), Exec(3)};
  const Schedule early = {Exec(0), Free(0), Exec(0), Exec(1), Exec(2), Exec(3)};
  const Schedule backward = {Exec(0), Exec(1), Exec(2), Exec(3), Exec(3)};

  EXPECT_TRUE(Evaluate(Small(), late, tape).ok());
  EXPECT_THAT(ErrorOf(Small(), early, tape), HasSubstr("not a backward op"));
  EXPECT_THAT(ErrorOf(Small(), backward, tape),
              HasSubstr("must not run again"));
}

TEST(EvaluateTest, NothingRunsAgainWhereTheExecutorCannotRunIt) {
  StepGraph graph = Small();
  graph.ops[3].replay_point = false;
  const Schedule before_2 = {Exec(0), Exec(1), Exec(0), Exec(2), Exec(3)};
  const Schedule before_3 = {Exec(0), Exec(1), Exec(2), Exec(0), Exec(3)};
  const Schedule at_the_end = {Exec(0), Exec(1), Exec(2), Exec(3), Exec(0)};

  EXPECT_TRUE(Evaluate(graph, before_2, {}).ok());
  EXPECT_TRUE(Evaluate(graph, at_the_end, {}).ok());
  EXPECT_THAT(ErrorOf(graph, before_3),
              HasSubstr("runs again right before op 3, where the executor "
                        "cannot run anything again"));
}

TEST(EvaluateTest, AnOpRunsAgainOnlyInsideItsWindows) {
  StepGraph graph = Small();
  graph.ops[0].replay_windows = {{.first = 1, .last = 1},
                                 {.first = 3, .last = 3}};
  const Schedule before_1 = {Exec(0), Exec(0), Exec(1), Exec(2), Exec(3)};
  const Schedule before_2 = {Exec(0), Exec(1), Exec(0), Exec(2), Exec(3)};
  const Schedule before_3 = {Exec(0), Exec(1), Exec(2), Exec(0), Exec(3)};
  const Schedule at_the_end = {Exec(0), Exec(1), Exec(2), Exec(3), Exec(0)};

  EXPECT_TRUE(Evaluate(graph, before_1, {}).ok());
  EXPECT_TRUE(Evaluate(graph, before_3, {}).ok());
  EXPECT_THAT(ErrorOf(graph, before_2),
              HasSubstr("runs again right before op 2, outside its replay "
                        "windows"));
  EXPECT_THAT(ErrorOf(graph, at_the_end), HasSubstr("outside its replay"));
}

TEST(EvaluateTest, TheMostRunsOfAnOpAreObeyed) {
  const Schedule thrice = {Exec(0), Free(0), Exec(0), Free(0),
                           Exec(0), Exec(1), Exec(2), Exec(3)};

  EXPECT_TRUE(Evaluate(Small(), thrice, {.max_runs = 3}).ok());
  EXPECT_THAT(ErrorOf(Small(), thrice, {.max_runs = 2}),
              HasSubstr("more than 2 times"));
}

TEST(EvaluateTest, DuplicatedOutputsAreChargedWhileTheOpRuns) {
  const Schedule schedule = {Exec(0), Exec(0), Exec(1), Exec(2), Exec(3)};
  std::vector<MemoryPoint> profile;

  ASSERT_TRUE(
      Evaluate(Small(), schedule, {.duplicate_outputs = true}, &profile).ok());

  EXPECT_EQ(profile[1].bytes, 100 + 4 + 4);
  EXPECT_EQ(profile[2].bytes, 100 + 4 + 8);
}

TEST(EvaluateTest, ANegativeGrowingScheduleDoesNotOverflowTheClock) {
  StepGraph graph = Small();
  graph.ops[0].time_ns = int64_t{1} << 61;
  Schedule schedule;
  for (int i = 0; i < 8; ++i) schedule.push_back(Exec(0));

  EXPECT_THAT(ErrorOf(graph, schedule), HasSubstr("more than 2^63"));
}

TEST(EvaluateTest, TheProgramHoldsAFirstLifeUntilItsReleaseOpHasRun) {
  StepGraph graph = Small();
  graph.storages[0].release_op = 2;
  const Capabilities program{.free_policy = FreePolicy::kProgram};

  EXPECT_THAT(ErrorOf(graph, {Exec(0), Exec(1), Free(0)}, program),
              HasSubstr("freed before op 2 has run"));
  EXPECT_TRUE(Evaluate(graph,
                       std::vector{Exec(0), Exec(1), Exec(2), Free(0), Exec(0),
                                   Exec(3)},
                       program)
                  .ok());
}

TEST(WithFreesTest, EagerFreesAfterTheLastReaderAndProgramAfterTheRelease) {
  StepGraph graph = Small();
  graph.ops[3].reads = {1};
  graph.storages[0].release_op = 2;

  EXPECT_THAT(
      BaseSchedule(graph, FreePolicy::kEager),
      ElementsAre(Exec(0), Exec(1), Free(0), Exec(2), Exec(3), Free(1)));
  EXPECT_THAT(
      BaseSchedule(graph, FreePolicy::kProgram),
      ElementsAre(Exec(0), Exec(1), Exec(2), Free(0), Exec(3), Free(1)));
}

TEST(WithFreesTest, ALifeEndsAtItsLastReaderBeforeItsNextCreation) {
  const std::vector<OpId> execs = {0, 1, 2, 0, 3};

  EXPECT_THAT(WithFrees(Small(), execs, FreePolicy::kEager),
              ElementsAre(Exec(0), Exec(1), Free(0), Exec(2), Exec(0), Exec(3),
                          Free(0), Free(1)));
}

TEST(LifetimesTest, ListsEveryLifeWithItsBirthAndDeath) {
  const Schedule schedule = {Exec(0), Exec(1), Free(0), Exec(2),
                             Exec(0), Exec(3), Free(0)};

  const std::vector<Lifetime> lives = Lifetimes(Small(), schedule);

  ASSERT_EQ(lives.size(), 3u);
  EXPECT_EQ(lives[0].dead, 2);
  EXPECT_EQ(lives[1].storage, 1);
  EXPECT_EQ(lives[1].dead, 7);  // to the end of the schedule
  EXPECT_EQ(lives[2].born, 4);
  EXPECT_EQ(lives[2].dead, 6);
}

}  // namespace
}  // namespace reprise::planner
