// SPDX-License-Identifier: Apache-2.0
//
// Plans public step graphs at the budgets of the papers; overhead and bound may
// not become worse than recorded here. Skipped unless REPRISE_GRAPHS names the
// folder of the graphs.
#include <gtest/gtest.h>

#include <cstdlib>

#include "planner/bounds/lp.h"
#include "planner/planner.h"
#include "tests/planner/graph_json.h"

namespace reprise::planner {
namespace {

struct Cell {
  const char* graph;
  double fraction;
  // In percent of the base time; negative: proven impossible.
  double overhead;
  double bound;
  // With Clp, the verifier accepts that the plan is optimal.
  bool optimal = false;
};

class GraphsTest : public testing::TestWithParam<Cell> {};

TEST_P(GraphsTest, IsNeverWorse) {
  const Cell& cell = GetParam();
  const char* folder = std::getenv("REPRISE_GRAPHS");
  const auto graph = ReadGraphFile(std::string(folder ? folder : ".") + "/" +
                                   cell.graph + ".json");
  if (!graph.has_value()) {
    GTEST_SKIP() << cell.graph << ".json is absent: set REPRISE_GRAPHS";
  }
  const auto base =
      Evaluate(*graph, BaseSchedule(*graph, FreePolicy::kEager), {});
  ASSERT_TRUE(base.ok());
  const int64_t dynamic = base->peak_bytes - graph->static_bytes;
  const int64_t budget =
      graph->static_bytes +
      static_cast<int64_t>(cell.fraction * static_cast<double>(dynamic));

  const auto plan = MakePlan(*graph, {.budget_bytes = budget});

  ASSERT_TRUE(plan.ok()) << plan.status().message();
  if (cell.overhead < 0) {
    EXPECT_FALSE(plan->feasible);
    EXPECT_FALSE(plan->undecided);
    return;
  }
  ASSERT_TRUE(plan->feasible);
  EXPECT_LE(plan->overhead * 100, cell.overhead);
  // Without Clp, the bounds of a few steps are lower.
  EXPECT_GE(plan->bound * 100, cell.bound * (HasLpSolver() ? 1 : 0.7));
  if (cell.optimal && HasLpSolver()) {
    EXPECT_TRUE(plan->proven_optimal)
        << plan->is_optimal << " " << plan->overhead * 100 << " "
        << plan->bound * 100;
  }
}

TEST(RefusalTest, LowerBoundNamesTheSmallestBudgetOfMakePlan) {
  const char* folder = std::getenv("REPRISE_GRAPHS");
  const auto graph = ReadGraphFile(std::string(folder ? folder : ".") +
                                   "/trace_resnet32.json");
  if (!graph.has_value()) {
    GTEST_SKIP() << "trace_resnet32.json is absent: set REPRISE_GRAPHS";
  }

  const auto bound = LowerBound(*graph, {.budget_bytes = 1});
  const auto plan = MakePlan(*graph, {.budget_bytes = 1});

  ASSERT_TRUE(bound.ok());
  ASSERT_TRUE(plan.ok());
  EXPECT_EQ(bound->infeasible.smallest_budget_bytes,
            plan->infeasible.smallest_budget_bytes);
  EXPECT_GE(bound->infeasible.smallest_budget_bytes, int64_t{720} << 20);
}

const Cell kCells[] = {
    {"checkmate_vgg16", 0.9, 1.97, 0.94, true},
    {"checkmate_vgg16", 0.7, -1, 0},
    {"checkmate_fcn8", 0.9, 0.0295, 0.003, true},
    {"checkmate_fcn8", 0.7, 0.8916, 0.21, true},
    {"checkmate_fcn8", 0.5, -1, 0},
    {"checkmate_unet", 0.9, 1.13, 0.83, true},
    {"checkmate_unet", 0.7, 2.97, 2.83, true},
    {"checkmate_unet", 0.5, 6.97, 6.29, true},
    {"checkmate_mobilenet", 0.7, 0.63, 0.6, true},
    {"checkmate_mobilenet", 0.5, 1.70, 1.61, true},
    {"checkmate_mobilenet", 0.4, 2.48, 2.36},
    {"checkmate_resnet50", 0.7, 0.57, 0.55, true},
    {"checkmate_resnet50", 0.5, 1.52, 1.48, true},
    {"checkmate_resnet50", 0.4, 2.25, 2.18},
    {"layered_100", 0.9, 0.79, 0.47, true},
    {"layered_100", 0.8, 2.2966, 1.5, true},
    {"layered_100", 0.7, 9.5, 3.36},
    {"layered_100", 0.6, 40, 5.9},
    {"layered_100", 0.56, 400, 7.4},
    {"layered_100", 0.55, 200, 8},
    {"layered_100", 0.5, -1, 0},
    {"layered_500", 0.9, 0.7806, 0.66},
    {"layered_500", 0.8, 3.6553, 2.2},
    {"layered_500", 0.7, 22.5, 4.95},
    {"layered_500", 0.6, 110, 14},
    {"layered_500", 0.5, 950, 28},
    {"trace_resnet32", 0.5, 9.2, 8.79},
    {"trace_densenet121", 0.7, 4.7, 4.48},
    {"trace_transformer", 0.5, 5.1, 4.77},
    {"trace_lstm", 0.9, 1.27, 0.43},
    {"trace_lstm", 0.5, 5.6, 5.55},
    {"trace_lstm", 0.3, 19, 16.57},
};

INSTANTIATE_TEST_SUITE_P(Public, GraphsTest, testing::ValuesIn(kCells),
                         [](const testing::TestParamInfo<Cell>& info) {
                           return std::string(info.param.graph) + "_" +
                                  std::to_string(static_cast<int>(
                                      info.param.fraction * 100));
                         });

}  // namespace
}  // namespace reprise::planner
