// SPDX-License-Identifier: Apache-2.0
//
// Plans that use host memory, as files: written, read, verified, explained; and
// what must not get one.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "formats/convert/capabilities.h"
#include "formats/convert/explain_proto.h"
#include "formats/convert/graph_proto.h"
#include "formats/convert/plan_json.h"
#include "formats/convert/plan_proto.h"
#include "formats/convert/verify_proto.h"
#include "planner/explain/explain.h"
#include "tests/planner/layers.h"

namespace reprise::formats {
namespace {

using ::testing::HasSubstr;

struct Made {
  Task task;
  planner::Plan plan;
  v1::Plan proto;
};

// Four layers of a 7B model in 0.4x, with a link.
const Made& Plan() {
  static const Made made = [] {
    auto task = MakeTask(ToProto(planner::Layers(4, 4096)), "00000000000000ab",
                         "0.4x", *ParseCapabilities("free"));
    EXPECT_TRUE(task.ok()) << task.status().message();
    task->request.max_ticks = 5'000'000;
    task->request.capabilities.link = {.out_bytes_per_s = 52'000'000'000,
                                       .in_bytes_per_s = 50'000'000'000,
                                       .latency_ns = 10'000,
                                       .host_bytes = int64_t{1} << 36};
    auto plan = planner::MakePlan(task->graph, task->request);
    EXPECT_TRUE(plan.ok()) << plan.status().message();
    v1::Plan proto = ToProto(*task, *plan, 1);
    return Made{*std::move(task), *std::move(plan), std::move(proto)};
  }();
  return made;
}

v1::Verification Verify(const v1::Plan& plan) {
  return VerifyPlan(Plan().task.graph, plan, {});
}

TEST(HostPlanFile, IsReadBackAndFoundTrue) {
  const v1::Plan& plan = Plan().proto;
  ASSERT_GT(plan.host_peak_bytes(), 0);
  const std::string text = WritePlanText(plan, "g.json");

  const auto read = ReadPlanText(text);

  ASSERT_TRUE(read.ok()) << read.status().message();
  EXPECT_EQ(read->plan.link().SerializeAsString(),
            plan.link().SerializeAsString());
  EXPECT_EQ(read->plan.certificate().SerializeAsString(),
            plan.certificate().SerializeAsString());
  const auto schedule = ToSchedule(read->plan, Plan().task.graph);
  ASSERT_TRUE(schedule.ok());
  EXPECT_EQ(*schedule, Plan().plan.schedule);
  const v1::Verification found = Verify(read->plan);
  EXPECT_TRUE(found.holds()) << found.wrong();
  EXPECT_EQ(found.bound_proof(), v1::BOUND_PROOF_CHECKED);
  EXPECT_EQ(found.time_ns(), plan.time_ns());
  for (const char* word :
       {"[\"send\", ", "[\"sent\", ", "[\"fetch\", ", "[\"fetched\", "}) {
    EXPECT_THAT(text, HasSubstr(word));
  }
  EXPECT_THAT(plan.sentence(), HasSubstr("On the host "));
}

TEST(HostPlanFile, IsRejectedWhereOneThingWasChanged) {
  const v1::Plan& good = Plan().proto;
  const auto at = [&](planner::Entry::Kind kind) {
    int i = 0;
    while (planner::EntryOf(good.schedule(i))->kind != kind) ++i;
    return i;
  };
  using Kind = planner::Entry::Kind;
  const auto without = [&](Kind kind) {
    return [&, kind](v1::Plan& p) {
      p.mutable_schedule()->erase(p.schedule().begin() + at(kind));
    };
  };
  const std::pair<const char*, std::function<void(v1::Plan&)>> changes[] = {
      {"a send", without(Kind::kSend)},
      {"a sent", without(Kind::kSent)},
      {"a fetch", without(Kind::kFetch)},
      {"a fetched", without(Kind::kFetched)},
      {"the link", [](v1::Plan& p) { p.clear_link(); }},
      {"a faster link",
       [](v1::Plan& p) {
         p.mutable_link()->set_out_bytes_per_s(100'000'000'000);
       }},
      {"less on the host",
       [](v1::Plan& p) { p.set_host_peak_bytes(p.host_peak_bytes() - 1); }},
      {"less host memory",
       [](v1::Plan& p) {
         p.mutable_link()->set_host_bytes(p.host_peak_bytes() - 1);
       }},
      {"the bound", [](v1::Plan& p) { p.set_bound(p.bound() * 1.01); }},
      {"the claim",
       [](v1::Plan& p) {
         p.mutable_certificate()->set_added_ns(p.certificate().added_ns() + 1);
       }},
      {"a row's price",
       [](v1::Plan& p) {
         auto& leaf = *p.mutable_certificate()->mutable_tree(0);
         leaf.set_multipliers(0, leaf.multipliers(0) * 2);
       }},
      {"a row",
       [](v1::Plan& p) {
         p.mutable_certificate()->mutable_tree(0)->set_rows(0, 1 << 20);
       }},
  };
  for (const auto& [what, change] : changes) {
    v1::Plan plan = good;
    change(plan);
    const v1::Verification found = Verify(plan);
    EXPECT_FALSE(found.holds()) << what;
  }
}

TEST(HostPlanFile, IsExplainedByTheSlackOfItsCopies) {
  const Made& made = Plan();

  const planner::Explanation explained = planner::Explain(
      made.task.graph, made.plan, made.task.request.budget_bytes,
      made.task.request.capabilities);

  int hosted = 0, awaited = 0;
  for (const planner::StorageExplanation& storage : explained.storages) {
    EXPECT_EQ(storage.decision, made.plan.decisions[storage.storage]);
    if (storage.decision != planner::Decision::kOffload) continue;
    ++hosted;
    awaited += storage.copy_slack_ns < 0;
    EXPECT_EQ(storage.why, storage.copy_slack_ns < 0 ? "awaited" : "hidden");
    EXPECT_EQ(storage.lives.size() - 1u,
              static_cast<size_t>(storage.times_recomputed + 1));
  }
  EXPECT_GT(hosted, 2);
  EXPECT_LT(awaited, hosted);
  EXPECT_GT(explained.price_ns_per_byte, 0);
  const v1::Explanation proto = ToProto(made.task.graph, explained, 0);
  int groups = 0;
  for (const v1::StorageGroup& group : proto.groups()) {
    groups += group.decision() == v1::DECISION_OFFLOAD;
  }
  EXPECT_GT(groups, 0);
}

// A reader that does not know copies sees storages that do not exist; requests
// have no word for a link, so nothing but a graph file is planned with one, and
// without one the evaluator refuses the entries.
TEST(HostPlanFile, ReachesNobodyWhoDidNotAskForIt) {
  const v1::Plan& plan = Plan().proto;
  const planner::StepGraph& graph = Plan().task.graph;
  int copies = 0;
  for (const int64_t entry : plan.schedule()) {
    if (entry >= -graph.storage_count()) continue;
    ++copies;
    EXPECT_GE(-(entry + 1), graph.storage_count());
  }
  EXPECT_GT(copies, 8);
  for (const char* executor : {"tape", "graph", "joint", "tf-graph", "free"}) {
    const auto can = ToPlanner(*ParseCapabilities(executor));
    ASSERT_TRUE(can.ok());
    EXPECT_EQ(can->link, planner::Link{}) << executor;
    EXPECT_THAT(
        planner::Evaluate(graph, Plan().plan.schedule, *can).status().message(),
        HasSubstr("the executor has no host memory"))
        << executor;
  }
}

TEST(HostPlanFile, ErrorsInItsKeysAreNamed) {
  const std::string text = WritePlanText(Plan().proto, "g.json");
  const auto error = [&](const std::string& from, const std::string& to) {
    std::string changed = text;
    const size_t at = changed.find(from);
    EXPECT_NE(at, std::string::npos) << from;
    changed.replace(at, from.size(), to);
    return ReadPlanText(changed).status().message();
  };
  EXPECT_THAT(error("[\"send\"", "[\"sending\""),
              HasSubstr("send, sent, fetch, fetched and a storage"));
  EXPECT_THAT(error("\"latency_ns\": 10000", "\"latency_ns\": -1"),
              HasSubstr("link.latency_ns: must not be negative, got -1"));
  EXPECT_THAT(error("\"host_bytes\"", "\"bytes\""),
              HasSubstr("link.host_bytes: missing"));
}

}  // namespace
}  // namespace reprise::formats
