// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <google/protobuf/util/message_differencer.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <random>

#include "formats/convert/capabilities.h"
#include "formats/convert/plan_json.h"
#include "formats/convert/plan_proto.h"
#include "tests/cli/small_graph.h"

namespace reprise::formats {
namespace {

using google::protobuf::util::MessageDifferencer;
using testing::HasSubstr;

v1::Plan PlanFor(const std::string& budget,
                 const v1::StepGraph& graph = SmallGraph()) {
  const auto task =
      MakeTask(graph, "00000000000000ab", budget, *ParseCapabilities("free"));
  EXPECT_TRUE(task.ok()) << task.status().message();
  const auto plan = planner::MakePlan(task->graph, task->request);
  EXPECT_TRUE(plan.ok()) << plan.status().message();
  return ToProto(*task, *plan, 2.25);
}

std::string Message(const std::string& text) {
  return ReadPlanText(text).status().message();
}

TEST(PlanJson, HasEveryKeyOfTheFormat) {
  const auto json =
      nlohmann::json::parse(WritePlanText(PlanFor("1324"), "small.json"));

  EXPECT_EQ(json["format"], "reprise.plan/1");
  EXPECT_EQ(json["graph"], "small.json");
  EXPECT_EQ(json["budget_bytes"], 1324);
  EXPECT_EQ(json["feasible"], true);
  EXPECT_EQ(json["peak_bytes"], 1324);
  EXPECT_EQ(json["base_peak_bytes"], 1324);
  EXPECT_EQ(json["time_ns"], 91);
  EXPECT_EQ(json["base_time_ns"], 91);
  EXPECT_EQ(json["overhead"], 0);
  EXPECT_EQ(json["bound"], 0);
  EXPECT_EQ(json["bound_scope"], "order");
  EXPECT_EQ(json["proven_optimal"], true);
  EXPECT_TRUE(json["solver"].is_string());
  EXPECT_EQ(json["solve_ms"], 2.25);
  EXPECT_TRUE(json["saved"].is_array());
  EXPECT_TRUE(json["recomputed_ops"].is_array());
  EXPECT_EQ(json["schedule"][0], (nlohmann::json{"exec", 0}));
  EXPECT_FALSE(json.contains("smallest_budget_bytes"));
}

TEST(PlanJson, SaysWhatThePassesOfTheSearchCostAndGained) {
  // b2 does not read storage 0, so it can be recomputed before b1.
  v1::StepGraph graph = SmallGraph();
  graph.mutable_ops(3)->clear_reads();
  graph.mutable_ops(3)->add_reads(1);
  graph.mutable_ops(3)->add_reads(2);
  const v1::Plan plan = PlanFor("1310", graph);
  ASSERT_GT(plan.passes_size(), 0);
  const std::string text = WritePlanText(plan, "small.json");

  const auto json = nlohmann::json::parse(text);
  ASSERT_EQ(json["passes"].size(), static_cast<size_t>(plan.passes_size()));
  EXPECT_EQ(json["passes"][0]["name"], "base-windows");
  EXPECT_EQ(json["passes"][0]["runs"], 1);
  EXPECT_GT(json["passes"][0]["ticks"], 0);
  EXPECT_TRUE(json["passes"][0]["overhead_gain"].is_number());
  EXPECT_TRUE(json["passes"][0]["bound_gain"].is_number());
  const auto read = ReadPlanText(text);
  ASSERT_TRUE(read.ok()) << read.status().message();
  ASSERT_EQ(read->plan.passes_size(), plan.passes_size());
  for (int i = 0; i < plan.passes_size(); ++i) {
    EXPECT_TRUE(
        MessageDifferencer::Equals(read->plan.passes(i), plan.passes(i)));
  }
  EXPECT_THAT(
      Message(R"({"format":"reprise.plan/1","graph":"g","budget_bytes":1,)"
              R"("feasible":false,"base_peak_bytes":1,"base_time_ns":1,)"
              R"("smallest_budget_bytes":1,"blocking_op":0,)"
              R"("passes":[{"name":"any","runs":-1}]})"),
      HasSubstr("passes[0].runs"));
}

TEST(PlanJson, AnImpossibleBudgetHasItsProofAndNoFigures) {
  const auto json =
      nlohmann::json::parse(WritePlanText(PlanFor("1200"), "small.json"));

  EXPECT_EQ(json["feasible"], false);
  EXPECT_EQ(json["smallest_budget_bytes"], 1324);
  EXPECT_EQ(json["blocking_op"], 3);
  EXPECT_TRUE(json["schedule"].empty());
  EXPECT_FALSE(json.contains("peak_bytes"));
  EXPECT_FALSE(json.contains("overhead"));
}

TEST(PlanJson, WhatIsWrittenIsReadBack) {
  for (const char* budget : {"1324", "1200"}) {
    v1::Plan plan = PlanFor(budget);
    const auto read = ReadPlanText(WritePlanText(plan, "g.json"));

    ASSERT_TRUE(read.ok()) << read.status().message();
    EXPECT_EQ(read->graph, "g.json");
    EXPECT_EQ(read->plan.sentence(), plan.sentence());
    // The file omits these: they follow from the graph and the schedule.
    plan.clear_decisions();
    plan.clear_predicted();
    plan.clear_peak_op();
    plan.mutable_infeasible()->clear_storages();
    if (plan.feasible()) plan.clear_infeasible();
    if (!plan.feasible()) {
      plan.clear_bound();
      plan.clear_bound_scope();
    }
    EXPECT_TRUE(MessageDifferencer::Equals(read->plan, plan))
        << read->plan.DebugString() << plan.DebugString();
  }
}

TEST(PlanJson, APlanOfTheReadmeAloneIsEnough) {
  const auto read = ReadPlanText(R"({
    "format": "reprise.plan/1", "graph": "g", "budget_bytes": 2000,
    "feasible": true, "peak_bytes": 1800, "base_peak_bytes": 4000,
    "time_ns": 110, "base_time_ns": 100, "overhead": 0.1, "bound": 0.05,
    "bound_scope": "order", "proven_optimal": false, "solver": "x",
    "solve_ms": 12.3, "smallest_budget_bytes": 1, "blocking_op": 17,
    "saved": [1], "recomputed_ops": [0, 0],
    "schedule": [["exec", 0], ["free", 3], ["exec", 0]] })");

  ASSERT_TRUE(read.ok()) << read.status().message();
  EXPECT_THAT(read->plan.schedule(), testing::ElementsAre(0, -4, 0));
  EXPECT_THAT(read->plan.sentence(), HasSubstr("at most 5.0 % above optimal"));
}

TEST(PlanJson, MistakesAreNamed) {
  const std::string good = WritePlanText(PlanFor("1324"), "g");
  const auto changed = [&good](const std::string& from, const std::string& to) {
    std::string text = good;
    const size_t at = text.find(from);
    EXPECT_NE(at, std::string::npos) << from;
    return Message(text.replace(at, from.size(), to));
  };
  EXPECT_THAT(Message("{"), HasSubstr("byte 1: the JSON ends too early"));
  EXPECT_THAT(Message("{}"), HasSubstr("format: must be \"reprise.plan/1\""));
  EXPECT_THAT(changed("\"peak_bytes\": 1324", "\"peak_bytes\": -1"),
              HasSubstr("peak_bytes: must not be negative, got -1"));
  EXPECT_THAT(changed("\"peak_bytes\": 1324", "\"peak_byte\": 1"),
              HasSubstr("peak_bytes: missing"));
  EXPECT_THAT(changed("\"feasible\": true", "\"feasible\": 1"),
              HasSubstr("feasible: must be true or false"));
  EXPECT_THAT(changed("[\"exec\", 0]", "[\"exec\", -1]"),
              HasSubstr("schedule[0]"));
  EXPECT_THAT(changed("[\"exec\", 0]", "[\"run\", 0]"),
              HasSubstr("schedule[0]"));
  EXPECT_THAT(changed("[\"exec\", 0]", "[\"exec\"]"), HasSubstr("schedule[0]"));
  EXPECT_THAT(changed("[\"exec\", 0]", "[\"exec\", 99999999999]"),
              HasSubstr("schedule[0]"));
  EXPECT_THAT(changed("\"saved\": [", "\"saved\": [\"x\", "),
              HasSubstr("saved[0]"));
}

TEST(PlanJson, NoByteOfDamageIsFatal) {
  const std::string good = WritePlanText(PlanFor("1324"), "g");
  std::mt19937 random(7);
  for (int i = 0; i < 20'000; ++i) {
    std::string bad = good;
    bad[random() % bad.size()] = static_cast<char>(random());
    const auto read = ReadPlanText(bad);
    EXPECT_NE(read.ok(), !read.status().message().empty());
  }
}

}  // namespace
}  // namespace reprise::formats
