// SPDX-License-Identifier: Apache-2.0
//
// tests/python/plan/test_verdict.py checks the same cases for the Python package.
#include "server/service/runs/verdict.h"

#include <google/protobuf/util/json_util.h>
#include <google/protobuf/util/message_differencer.h>
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "base/str_cat.h"
#include "profiler/include/reprise_wire.h"

namespace reprise::server {
namespace {

using Json = nlohmann::json;
using google::protobuf::util::JsonStringToMessage;
using google::protobuf::util::MessageDifferencer;

Json ReadCases() {
  std::ifstream file(REPRISE_SOURCE_DIR "/tests/fixtures/verdicts.json");
  return Json::parse(file).at("cases");
}

template <typename Message>
Message Read(const Json& json) {
  Message message;
  const auto status = JsonStringToMessage(json.dump(), &message);
  EXPECT_TRUE(status.ok()) << status.ToString() << ": " << json.dump();
  return message;
}

v1::Verdict VerdictOf(const Json& one) {
  const auto plan = Read<v1::Plan>(one.at("plan"));
  std::map<std::string, int64_t> budgets =
      one.value("budgets", std::map<std::string, int64_t>());
  budgets[plan.plan_id()] = plan.budget_bytes();
  VerdictBuilder builder;
  for (const Json& report : one.at("reports")) {
    if (report.contains("step")) {
      const auto step = Read<v1::StepReport>(report.at("step"));
      builder.Add(step, step.plan_id().empty() ? 0 : budgets[step.plan_id()]);
    } else if (report.contains("check")) {
      builder.Add(Read<v1::VerifyReport>(report.at("check")));
    } else {
      builder.Add(Read<v1::PlanState>(report.at("state")));
    }
  }
  v1::StepGraph graph;
  graph.set_measured_step_ns(one.value("measured_step_ns", int64_t{0}));
  v1::RunState state = v1::RUN_STATE_UNSPECIFIED;
  EXPECT_TRUE(v1::RunState_Parse(
      one.value("state", std::string("RUN_STATE_UNSPECIFIED")), &state));
  return builder.Build(plan, graph, state);
}

TEST(Verdict, OfTheSameReportsIsTheOneOfThePythonPackage) {
  const Json cases = ReadCases();
  ASSERT_GT(cases.size(), 20u);
  for (const Json& one : cases) {
    SCOPED_TRACE(one.at("name").get<std::string>());
    auto expected = Read<v1::Verdict>(one.at("expect"));
    expected.set_sentence(one.at("sentence").get<std::string>());

    const v1::Verdict verdict = VerdictOf(one);

    EXPECT_EQ(verdict.sentence(), expected.sentence());
    EXPECT_TRUE(MessageDifferencer::Equals(verdict, expected))
        << verdict.DebugString();
  }
}

TEST(Verdict, TheSentencePredictsTheStepOfTheTable) {
  int predicted = 0;
  for (const Json& one : ReadCases()) {
    SCOPED_TRACE(one.at("name").get<std::string>());
    const v1::Verdict verdict = VerdictOf(one);
    if (!verdict.feasible()) continue;
    ++predicted;
    const double added = static_cast<double>(verdict.predicted_step_ns()) /
                             static_cast<double>(verdict.base_step_ns()) -
                         1;
    const auto says = [&](const std::string& text) {
      return verdict.sentence().find(text) != std::string::npos;
    };

    EXPECT_TRUE(
        says(StrCat("   Step ", FormatDuration(verdict.predicted_step_ns()),
                    " (", FormatPercent(added, /*sign=*/true), ")")))
        << verdict.sentence();
    EXPECT_TRUE(says(
        StrCat(".  Peak ", FormatBytes(verdict.predicted_peak_bytes()), " ")))
        << verdict.sentence();
  }
  EXPECT_GT(predicted, 20);
}

TEST(Verdict, IsAboutThePlanOfTheNewestPlannedStep) {
  VerdictBuilder builder;
  EXPECT_EQ(builder.plan_id(), "");
  v1::StepReport step;
  step.set_planned(true);
  step.set_plan_id("0000000000000001");
  builder.Add(step, 0);
  step.clear_plan_id();  // a step of another shape than the plan's
  builder.Add(step, 0);

  EXPECT_EQ(builder.plan_id(), "0000000000000001");
}

TEST(Verdict, SaysOfHowManyProcessesItCountsTheStepsWithoutAPlan) {
  VerdictBuilder builder;
  v1::StepReport step;
  step.set_peak_bytes(1 << 20);
  for (const char* const rank : {"one", "two"}) {
    builder.Add(step, 0, rank);
    builder.Add(step, 0, rank);
  }
  v1::PlanState none;
  none.set_state(REPRISE_PLAN_NONE);
  none.set_why("no reason");
  builder.Add(none);

  EXPECT_EQ(builder.Build({}, {}, v1::RUN_STATE_FINISHED).sentence(),
            "No plan: no reason. 4 steps of 2 processes ran without a plan, at "
            "up to 1.0 MiB.");
}

TEST(Verdict, APeakBesideWhatARefusedStepNeedsIsRoundedAsThatIs) {
  VerdictBuilder builder;
  v1::StepReport step;
  step.set_peak_bytes((9 << 20) + (115 << 10));  // 9.11 MiB
  builder.Add(step, 0);
  v1::Plan plan;
  plan.set_plan_id("0000000000000001");
  plan.set_sentence("op 1 needs at least 9.2 MiB.");
  v1::PlanState refused;
  refused.set_plan_id(plan.plan_id());
  refused.set_state(REPRISE_PLAN_REFUSED);
  builder.Add(refused);

  EXPECT_EQ(builder.Build(plan, {}, v1::RUN_STATE_FINISHED).sentence(),
            "op 1 needs at least 9.2 MiB. 1 step ran without a plan, at up to "
            "9.2 MiB.");
}

}  // namespace
}  // namespace reprise::server
