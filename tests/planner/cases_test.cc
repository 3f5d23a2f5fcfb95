// SPDX-License-Identifier: Apache-2.0
//
// Runs every file of tests/planner/cases.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "tests/planner/case_file.h"

namespace reprise::planner {
namespace {

std::vector<std::string> CaseFiles() {
  std::vector<std::string> files;
  for (const auto& entry : std::filesystem::directory_iterator(
           REPRISE_SOURCE_DIR "/tests/planner/cases")) {
    if (entry.path().extension() == ".plan") {
      files.push_back(entry.path().stem().string());
    }
  }
  std::sort(files.begin(), files.end());
  return files;
}

class CaseTest : public testing::TestWithParam<std::string> {};

TEST_P(CaseTest, GivesTheExpectedPlan) {
  StatusOr<PlanCase> read = ReadCase(
      REPRISE_SOURCE_DIR "/tests/planner/cases/" + GetParam() + ".plan");
  ASSERT_TRUE(read.ok()) << read.status().message();
  PlanCase& expected = *read;
  expected.request.target_gap = 0;
  expected.request.max_ticks = 500'000;

  const StatusOr<Plan> plan = MakePlan(expected.graph, expected.request);

  ASSERT_TRUE(plan.ok()) << plan.status().message();
  if (expected.impossible) {
    EXPECT_FALSE(plan->feasible);
    EXPECT_FALSE(plan->undecided);
    EXPECT_EQ(plan->infeasible.smallest_budget_bytes, expected.peak_bytes);
    ASSERT_NE(plan->infeasible.blocking_op, kNoOp);
    EXPECT_EQ(expected.graph.ops[plan->infeasible.blocking_op].name,
              expected.at);
    return;
  }
  ASSERT_TRUE(plan->feasible);
  std::vector<std::string> recomputed;
  for (const auto& [name, id] : expected.storages) {
    if (plan->decisions[id] == Decision::kRecompute) recomputed.push_back(name);
  }
  std::sort(expected.recompute.begin(), expected.recompute.end());
  EXPECT_EQ(recomputed, expected.recompute);
  EXPECT_EQ(plan->evaluation.peak_bytes, expected.peak_bytes);
  EXPECT_EQ(plan->evaluation.time_ns, expected.step_ns);
  if (expected.bound_ns >= 0) {
    EXPECT_EQ(std::llround(plan->bound * plan->base_time_ns),
              expected.bound_ns);
  }
}

INSTANTIATE_TEST_SUITE_P(Files, CaseTest, testing::ValuesIn(CaseFiles()),
                         [](const testing::TestParamInfo<std::string>& info) {
                           return info.param;
                         });

}  // namespace
}  // namespace reprise::planner
