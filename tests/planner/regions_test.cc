// SPDX-License-Identifier: Apache-2.0
#include "planner/regions/regions.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "tests/planner/chain_step.h"
#include "tests/planner/random_graph.h"
#include "tests/planner/region_oracle.h"

namespace reprise::planner {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// A level below that of every region: never kept.
constexpr int32_t kDropped = 99;

RegionPlan NothingSaved(const StepGraph& graph, std::vector<Region> regions) {
  return {.regions = std::move(regions),
          .levels = std::vector<int32_t>(graph.storage_count(), kDropped)};
}

class RegionsTest : public testing::Test {
 protected:
  Problem Nested(const StepGraph& graph) {
    return MakeProblem(graph, {.execution = Execution::kNested});
  }
};

TEST_F(RegionsTest, AWholeRegionRunsAgainAtItsFirstNeed) {
  const StepGraph graph = UniformChain(6);

  // x2 crosses the border between the regions and is saved.
  EXPECT_THAT(RegionExecs(Nested(graph), NothingSaved(graph, {{0, 3}, {3, 6}})),
              ElementsAre(0, 1, 2, 3, 4, 5, 3, 4, 5, 6, 7, 8, 9, 0, 1, 10, 11));
}

TEST_F(RegionsTest, WhatTheInnerRegionMakesIsGoneWhenTheOuterOneHasRun) {
  const StepGraph graph = UniformChain(4);
  const RegionPlan plan = NothingSaved(graph, {{0, 4}, {0, 2}, {2, 4}});

  // The forward keeps nothing. [0, 4) keeps x1, which crosses; [2, 4)
  // recomputes x2 and x3; for op 7 [0, 2) recomputes x0 only, since x1 is
  // present.
  EXPECT_THAT(RegionExecs(Nested(graph), plan),
              ElementsAre(0, 1, 2, 3, 0, 1, 2, 3, 4, 5, 6, 0, 7));
}

TEST_F(RegionsTest, ALevelInBetweenIsKeptByTheRegionOfThatDepth) {
  const StepGraph graph = UniformChain(4);
  RegionPlan plan = NothingSaved(graph, {{0, 4}, {0, 2}, {2, 4}});
  plan.levels[3] = 1;

  // x3 stays after the re-run of [0, 4), in which [2, 4) also runs; x2 is
  // dropped after it and recomputed for op 5.
  EXPECT_THAT(RegionExecs(Nested(graph), plan),
              ElementsAre(0, 1, 2, 3, 0, 1, 2, 3, 4, 2, 5, 6, 0, 7));
}

TEST_F(RegionsTest, ALazyRegionMakesOnlyWhatIsNeeded) {
  const StepGraph graph = UniformChain(4);
  const Problem problem = MakeProblem(graph, {.execution = Execution::kOnce});
  RegionPlan plan = NothingSaved(graph, {{0, 4}});
  plan.levels[3] = plan.levels[0] = 0;

  // Op 5 reads x2, whose recomputation needs x1; x1 then stays for op 6.
  EXPECT_THAT(RegionExecs(problem, plan),
              ElementsAre(0, 1, 2, 3, 4, 1, 2, 5, 6, 7));
}

TEST_F(RegionsTest, WhatMayNotRunAgainIsSavedWhateverTheLevelsSay) {
  StepGraph graph = UniformChain(4);
  graph.ops[2].kind = OpKind::kOnce;

  EXPECT_THAT(RegionExecs(Nested(graph), NothingSaved(graph, {{0, 4}})),
              ElementsAre(0, 1, 2, 3, 0, 1, 3, 4, 5, 6, 7));
}

TEST_F(RegionsTest, AgreesWithAnotherReadingOfTheRules) {
  Random random(7);
  int ran = 0, nested = 0;
  for (int i = 0; i < 3000; ++i) {
    const StepGraph graph = RandomGraph(random, 9);
    Capabilities capabilities = RandomCapabilities(random);
    capabilities.execution = Execution::kNested;
    capabilities.max_runs = 0;
    capabilities.lazy_region = random.Percent(30);
    capabilities = WithExecution(capabilities);
    const Problem problem = MakeProblem(graph, capabilities);
    const int forward = ForwardOps(graph);
    if (forward == 0 || forward == graph.op_count()) continue;
    std::vector<Region> regions;
    for (int r = random.Below(5); r >= 0; --r) {
      const OpId begin = random.Below(forward);
      regions.push_back({begin, begin + 1 + random.Below(forward - begin)});
    }
    RegionPlan plan{.regions = reprise::planner::Nested(regions, 9)};
    for (StorageId s = 0; s < graph.storage_count(); ++s) {
      plan.levels.push_back(random.Percent(40) ? random.Below(4) : kDropped);
    }
    ASSERT_EQ(CheckRegions(problem, plan), OkStatus()) << "graph " << i;

    const auto expected = ExecsOf(graph, capabilities, plan);

    EXPECT_EQ(RegionExecs(problem, plan),
              expected.value_or(std::vector<OpId>{}))
        << "graph " << i;
    ran += expected.has_value() &&
           static_cast<int>(expected->size()) > graph.op_count();
    nested += expected.has_value() && DepthOf(plan) > 1;
  }
  EXPECT_GT(ran, 500);
  EXPECT_GT(nested, 500);
}

TEST_F(RegionsTest, TakesRevolvesSchedulesOver) {
  for (const int length : {2, 5, 16, 61}) {
    for (int slots = 1; slots <= 8; ++slots) {
      SCOPED_TRACE(std::to_string(length) + " steps, " + std::to_string(slots) +
                   " slots");
      const StepGraph graph = UniformChain(length);
      const Problem problem = Nested(graph);
      const std::vector<OpId> execs = RevolveExecs(length, slots);
      const auto revolve =
          Evaluate(graph, WithFrees(graph, execs, FreePolicy::kEager),
                   problem.capabilities);
      ASSERT_TRUE(revolve.ok());

      const RegionPlan plan = RegionsOfExecs(problem, execs, length);

      const auto evaluation = EvaluateRegions(
          problem,
          WithFrees(graph, RegionExecs(problem, plan), FreePolicy::kEager),
          plan);
      ASSERT_TRUE(evaluation.ok()) << evaluation.status().message();
      EXPECT_LE(evaluation->time_ns, revolve->time_ns);
      // The output of a region stays until it is read.
      EXPECT_LE(evaluation->peak_bytes, revolve->peak_bytes + 10);
    }
  }
}

TEST_F(RegionsTest, TheRefereeNamesTheFirstDifference) {
  const StepGraph graph = UniformChain(4);
  const Problem problem = Nested(graph);
  const RegionPlan plan = NothingSaved(graph, {{0, 2}, {2, 4}});
  std::vector<OpId> execs = RegionExecs(problem, plan);
  const auto evaluate = [&] {
    return EvaluateRegions(problem, WithFrees(graph, execs, FreePolicy::kEager),
                           plan);
  };
  EXPECT_TRUE(evaluate().ok());

  // Everything is saved: a valid schedule, but not what these regions do.
  execs = {0, 1, 2, 3, 4, 5, 6, 7};
  EXPECT_THAT(std::string(evaluate().status().message()),
              HasSubstr("op 4 runs where the regions run op 2"));
  execs = RegionExecs(problem, plan);
  execs.pop_back();
  EXPECT_THAT(std::string(evaluate().status().message()),
              HasSubstr("ends where the regions run op 7"));
}

TEST_F(RegionsTest, RegionsThatAreNoneAreRefusedByName) {
  const StepGraph graph = UniformChain(4);
  const Problem problem = Nested(graph);
  const auto error = [&](std::vector<Region> regions) {
    return std::string(
        CheckRegions(problem, NothingSaved(graph, std::move(regions)))
            .message());
  };
  EXPECT_THAT(error({{0, 4}, {1, 3}}), IsEmpty());
  EXPECT_THAT(error({{0, 5}}), HasSubstr("not a stretch of the forward"));
  EXPECT_THAT(error({{-1, 2}}), HasSubstr("not a stretch of the forward"));
  EXPECT_THAT(error({{2, 2}}), HasSubstr("not a stretch of the forward"));
  EXPECT_THAT(error({{0, 3}, {1, 4}}), HasSubstr("[1, 4) crosses [0, 3)"));
  EXPECT_THAT(error({{1, 3}, {0, 4}}), HasSubstr("regions[1]: comes"));
  EXPECT_THAT(error({{1, 3}, {1, 3}}), HasSubstr("comes twice"));
  RegionPlan plan = NothingSaved(graph, {{0, 4}});
  plan.levels.pop_back();
  EXPECT_THAT(std::string(CheckRegions(problem, plan).message()),
              HasSubstr("one per storage, 8, got 7"));
}

}  // namespace
}  // namespace reprise::planner
