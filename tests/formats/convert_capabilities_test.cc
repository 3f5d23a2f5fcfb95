// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "formats/convert/capabilities.h"

namespace reprise::formats {
namespace {

using testing::HasSubstr;

TEST(Capabilities, TapeIsAPresetThatKeysOverride) {
  const auto tape = ParseCapabilities("tape:seeded_ok=1:ns_per_op=9000");

  ASSERT_TRUE(tape.ok()) << tape.status().message();
  EXPECT_EQ(tape->executor(), "tape");
  EXPECT_TRUE(tape->recompute_in_backward_only());
  EXPECT_TRUE(tape->duplicate_outputs());
  EXPECT_TRUE(tape->seeded_ok());
  EXPECT_FALSE(tape->collective_ok());
  EXPECT_EQ(tape->ns_per_op(), 9000);
  EXPECT_EQ(tape->free_policy(), v1::FREE_POLICY_PROGRAM);
}

TEST(Capabilities, AGraphOfTensorFlowMakesAllOutputsOfACopyAnew) {
  const auto rewritten = ParseCapabilities("tf-graph");

  ASSERT_TRUE(rewritten.ok()) << rewritten.status().message();
  EXPECT_EQ(rewritten->executor(), "tf-graph");
  EXPECT_TRUE(rewritten->duplicate_outputs());
  EXPECT_FALSE(rewritten->seeded_ok());
  EXPECT_FALSE(rewritten->recompute_in_backward_only());
  EXPECT_EQ(rewritten->free_policy(), v1::FREE_POLICY_EAGER);
}

TEST(Capabilities, TheFirstKnownExecutorIsTaken) {
  const auto chosen = ParseCapabilities("teleport:x=1,graph:max_runs=2,tape");

  ASSERT_TRUE(chosen.ok()) << chosen.status().message();
  EXPECT_EQ(chosen->executor(), "graph");
  EXPECT_EQ(chosen->max_runs(), 2u);
  EXPECT_TRUE(chosen->duplicate_outputs());
}

TEST(Capabilities, EmptyTextIsTheUnrestrictedSchedule) {
  const auto free = ParseCapabilities("");

  ASSERT_TRUE(free.ok());
  EXPECT_EQ(free->executor(), "");
  EXPECT_EQ(free->free_policy(), v1::FREE_POLICY_EAGER);
  EXPECT_FALSE(free->recompute_in_backward_only());
}

TEST(Capabilities, ALinkToHostMemoryHasFourKeys) {
  const auto linked = ParseCapabilities(
      "tape:out_bytes_per_s=26:in_bytes_per_s=52:latency_ns=3:host_bytes=9");
  ASSERT_TRUE(linked.ok()) << linked.status().message();
  v1::Capabilities negative = *linked;
  negative.mutable_link()->set_latency_ns(-1);

  EXPECT_EQ(ToPlanner(*linked)->link, (planner::Link{.out_bytes_per_s = 26,
                                                     .in_bytes_per_s = 52,
                                                     .latency_ns = 3,
                                                     .host_bytes = 9}));
  EXPECT_THAT(ToPlanner(negative).status().message(), HasSubstr("got -1"));
}

TEST(Capabilities, MistakesAreNamed) {
  const auto message = [](const char* text) {
    return ParseCapabilities(text).status().message();
  };
  EXPECT_THAT(message("teleport"), HasSubstr("no known executor"));
  EXPECT_THAT(message("tape:fly=1"), HasSubstr("unknown key \"fly\""));
  EXPECT_THAT(message("tape:seeded_ok=2"), HasSubstr("seeded_ok=2"));
  EXPECT_THAT(message("tape:seeded_ok"), HasSubstr("seeded_ok="));
  EXPECT_THAT(message("tape:max_runs=-1"), HasSubstr("max_runs=-1"));
  EXPECT_THAT(message("tape:max_runs=99999999999"), HasSubstr("max_runs"));
  EXPECT_THAT(message("tape:free_policy=never"), HasSubstr("eager or program"));
}

TEST(Capabilities, ThePlannerGetsWhatTheProtoSays) {
  auto proto = ParseCapabilities("tape:max_runs=3:ns_per_op=7");
  ASSERT_TRUE(proto.ok());

  const auto capabilities = ToPlanner(*proto);

  ASSERT_TRUE(capabilities.ok());
  EXPECT_EQ(capabilities->max_runs, 3);
  EXPECT_EQ(capabilities->ns_per_op, 7);
  EXPECT_TRUE(capabilities->recompute_in_backward_only);
  EXPECT_TRUE(capabilities->duplicate_outputs);
  EXPECT_EQ(capabilities->free_policy, planner::FreePolicy::kProgram);
}

TEST(Capabilities, AnUnspecifiedPolicyIsTheOneOfTheExecutor) {
  v1::Capabilities tape;
  tape.set_executor("tape");

  EXPECT_EQ(ToPlanner(tape)->free_policy, planner::FreePolicy::kProgram);
  EXPECT_EQ(ToPlanner({})->free_policy, planner::FreePolicy::kEager);
}

TEST(Capabilities, AnExecutorThatIsGoneIsRefusedWithThoseThatExist) {
  v1::Capabilities nested;
  nested.set_executor("nested");
  v1::Capabilities unnamed;
  unnamed.set_execution(static_cast<v1::Execution>(3));

  for (const v1::Capabilities& gone : {nested, unnamed}) {
    EXPECT_THAT(ToPlanner(gone).status().message(),
                HasSubstr("known are tape, graph, tf-graph, joint, free and "
                          "once"));
  }
}

TEST(Capabilities, AStoredPlanForAnExecutorThatIsGoneIsWalkedAsAnother) {
  v1::Capabilities nested;
  nested.set_executor("nested");
  nested.set_execution(static_cast<v1::Execution>(3));
  v1::Capabilities region;
  region.set_executor("region");
  const auto once = ParseCapabilities("once");
  ASSERT_TRUE(once.ok());

  EXPECT_EQ(ToPlanner(WalkedAs(nested))->execution, planner::Execution::kFree);
  EXPECT_EQ(ToPlanner(WalkedAs(nested))->free_policy,
            planner::FreePolicy::kEager);
  EXPECT_EQ(ToPlanner(WalkedAs(region))->free_policy,
            planner::FreePolicy::kProgram);
  EXPECT_EQ(ToPlanner(WalkedAs(*once))->execution, planner::Execution::kOnce);
}

TEST(Capabilities, HostileNumbersAreRefused) {
  v1::Capabilities proto;
  proto.set_max_runs(0xffffffffu);
  EXPECT_THAT(ToPlanner(proto).status().message(), HasSubstr("max_runs"));

  proto.set_max_runs(0);
  proto.set_ns_per_op(-5);
  EXPECT_THAT(ToPlanner(proto).status().message(), HasSubstr("ns_per_op"));

  proto.set_ns_per_op(0);
  proto.set_free_policy(static_cast<v1::FreePolicy>(77));
  EXPECT_THAT(ToPlanner(proto).status().message(), HasSubstr("free_policy"));
}

}  // namespace
}  // namespace reprise::formats
