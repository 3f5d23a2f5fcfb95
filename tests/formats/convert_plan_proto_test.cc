// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "formats/convert/capabilities.h"
#include "formats/convert/plan_proto.h"
#include "tests/cli/small_graph.h"

namespace reprise::formats {
namespace {

using testing::HasSubstr;

v1::Plan Make(const Task& task) {
  const auto plan = planner::MakePlan(task.graph, task.request);
  EXPECT_TRUE(plan.ok()) << plan.status().message();
  return ToProto(task, *plan, 1.5);
}

Task TaskFor(const std::string& budget, const v1::StepGraph& graph,
             int64_t reserve = 0) {
  auto task = MakeTask(graph, "00000000000000ab", budget,
                       *ParseCapabilities("free"), reserve);
  EXPECT_TRUE(task.ok()) << task.status().message();
  return *std::move(task);
}

TEST(PlanProto, AFractionIsOfTheDynamicPeak) {
  // 1000 + floor(0.5 * (1324 - 1000)) = 1162.
  EXPECT_EQ(TaskFor("0.5x", SmallGraph()).budget_bytes, 1162);
  EXPECT_EQ(TaskFor("0.5x", SmallGraph()).base_peak_bytes, 1324);
}

TEST(PlanProto, AFractionOfAJobIsOfItsMeasuredPeak) {
  v1::StepGraph graph = SmallGraph();
  graph.set_measured_peak_bytes(1400);

  const Task task = TaskFor("0.5x", graph);

  EXPECT_EQ(task.budget_bytes, 1200);
  EXPECT_EQ(task.base_peak_bytes, 1400);
  EXPECT_EQ(task.reserve_bytes, 76) << "1400 measured - 1324 modelled";
  EXPECT_EQ(task.request.budget_bytes, 1124);
}

TEST(PlanProto, AMeasuredPeakBelowTheModelHoldsNothingBack) {
  v1::StepGraph graph = SmallGraph();
  graph.set_measured_peak_bytes(1200);

  EXPECT_EQ(TaskFor("0.5x", graph).reserve_bytes, 0);
}

TEST(PlanProto, ThePlanSaysAllThatPeopleAndExecutorsNeed) {
  // Saving everything needs 1324; b1 alone needs 1000 + 300.
  const Task task = TaskFor("1324", SmallGraph());
  const v1::Plan plan = Make(task);

  ASSERT_TRUE(plan.feasible()) << plan.sentence();
  EXPECT_EQ(plan.peak_bytes(), 1324);
  EXPECT_EQ(plan.base_peak_bytes(), 1324);
  EXPECT_EQ(plan.time_ns(), 91);
  EXPECT_EQ(plan.overhead(), 0);
  EXPECT_EQ(plan.peak_op(), 3u);
  EXPECT_EQ(plan.graph_id(), "00000000000000ab");
  EXPECT_EQ(plan.budget(), "1324");
  EXPECT_EQ(plan.solve_ms(), 1.5);
  EXPECT_EQ(plan.decisions_size(), 5);
  EXPECT_THAT(plan.sentence(), HasSubstr("It fits in 1.3 KiB as it is"));
  // One point per exec: the bytes in use while it runs.
  EXPECT_THAT(plan.predicted().start_ns(),
              testing::ElementsAre(0, 10, 30, 31, 71));
  EXPECT_THAT(plan.predicted().bytes(),
              testing::ElementsAre(1100, 1200, 1208, 1324, 1300));
}

TEST(PlanProto, FiguresForPeopleIncludeTheReserve) {
  const v1::Plan plan = Make(TaskFor("1400", SmallGraph(), /*reserve=*/50));

  ASSERT_TRUE(plan.feasible());
  EXPECT_EQ(plan.budget_bytes(), 1400);
  EXPECT_EQ(plan.peak_bytes(), 1374);
  EXPECT_EQ(*std::max_element(plan.predicted().bytes().begin(),
                              plan.predicted().bytes().end()),
            1374);
}

TEST(PlanProto, AShareCountsTheReserveAsStaticMemory) {
  const int64_t plain = TaskFor("0.5x", SmallGraph()).budget_bytes;

  EXPECT_EQ(TaskFor("0.5x", SmallGraph(), /*reserve=*/50).budget_bytes,
            plain + 50);
}

TEST(PlanProto, AnImpossibleBudgetNamesTheOp) {
  const v1::Plan plan = Make(TaskFor("1200", SmallGraph(), /*reserve=*/10));

  EXPECT_FALSE(plan.feasible());
  EXPECT_EQ(plan.schedule_size(), 0);
  EXPECT_EQ(plan.infeasible().smallest_budget_bytes(), 1334)
      << "b2 needs 1324, and 10 are held back";
  EXPECT_EQ(plan.infeasible().blocking_op(), 3u);
  EXPECT_EQ(plan.infeasible().blocking_op_name(), "b2");
  EXPECT_EQ(plan.infeasible().blocking_module(), "layers.2");
  EXPECT_THAT(plan.sentence(), HasSubstr("op 3 b2 (layers.2) needs at least"));
}

TEST(PlanProto, AReserveAboveTheBudgetIsAnImpossibleBudget) {
  EXPECT_FALSE(Make(TaskFor("1400", SmallGraph(), 5000)).feasible());
}

TEST(PlanProto, EqualPlansHaveEqualIds) {
  const v1::Plan one = Make(TaskFor("1324", SmallGraph()));
  const v1::Plan again = Make(TaskFor("1324", SmallGraph()));
  const v1::Plan other = Make(TaskFor("1325", SmallGraph()));

  EXPECT_EQ(one.plan_id(), again.plan_id());
  EXPECT_NE(one.plan_id(), other.plan_id());
  EXPECT_EQ(one.plan_id().size(), 16u);
}

TEST(PlanProto, TheScheduleComesBackAndIsValid) {
  const Task task = TaskFor("1324", SmallGraph());
  const v1::Plan plan = Make(task);

  const auto schedule = ToSchedule(plan, task.graph);

  ASSERT_TRUE(schedule.ok());
  const auto evaluation =
      planner::Evaluate(task.graph, *schedule, task.request.capabilities);
  ASSERT_TRUE(evaluation.ok()) << evaluation.status().message();
  EXPECT_EQ(evaluation->peak_bytes, 1324);
}

TEST(PlanProto, AScheduleOfAnotherGraphIsRefused) {
  const Task task = TaskFor("1324", SmallGraph());
  v1::Plan plan;
  plan.add_schedule(5);
  EXPECT_THAT(ToSchedule(plan, task.graph).status().message(),
              HasSubstr("there is no op 5"));
  plan.set_schedule(0, -6);
  EXPECT_THAT(ToSchedule(plan, task.graph).status().message(),
              HasSubstr("there is no storage 5"));
  plan.set_schedule(0, std::numeric_limits<int64_t>::min());
  EXPECT_FALSE(ToSchedule(plan, task.graph).ok());
  plan.set_schedule(0, std::numeric_limits<int64_t>::max());
  EXPECT_FALSE(ToSchedule(plan, task.graph).ok());
}

TEST(PlanProto, AStepThatHasNotRunWaitsForAPlanThatMayBeFarFromTheOptimum) {
  v1::StepGraph graph = SmallGraph();
  const Task usual = TaskFor("0.5x", graph);

  graph.set_flavour("eager-shapes");

  const Task waiting = TaskFor("0.5x", graph);
  EXPECT_GT(waiting.request.target_gap, usual.request.target_gap);
  EXPECT_TRUE(waiting.waits);
  EXPECT_FALSE(usual.waits);
}

TEST(PlanProto, ABudgetThatCannotBeReadIsRefused) {
  const auto message = [](const char* budget) {
    return MakeTask(SmallGraph(), "", budget, {}).status().message();
  };
  EXPECT_THAT(message("8G"), HasSubstr("8GiB"));
  EXPECT_THAT(message("90%"), HasSubstr("x"));
  EXPECT_NE(message("fit"), "");
  EXPECT_NE(message("0"), "");
  EXPECT_NE(message("-1"), "");
  EXPECT_THAT(MakeTask(SmallGraph(), "", "0.5x", {}, -1).status().message(),
              HasSubstr("reserve_bytes"));
}

}  // namespace
}  // namespace reprise::formats
