// The executor hook: submits graphs and waits for plans.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <signal.h>
#include <stddef.h>
#include <sys/time.h>

#include <chrono>
#include <thread>

#include "tests/profiler/agent_test.h"

namespace reprise::profiler::testing {
namespace {

using ::testing::HasSubstr;

constexpr char kGraph[] = R"({"ops":[{"name":"aten::relu"}]})";
constexpr char kPlan[] = R"({"planId":"0000000000000007"})";

class PlanTest : public AgentTest {
 protected:
  static reprise_want Want(const char* budget = "0.5x",
                           const char* capabilities = "tape:seeded_ok=1") {
    reprise_want want = {};
    want.struct_size = sizeof want;
    want.budget = budget;
    want.capabilities = capabilities;
    want.static_bytes = 11;
    want.device_bytes = 22;
    return want;
  }

  static uint64_t Submit(const std::string& json = kGraph,
                         const reprise_want& want = Want()) {
    uint64_t graph = 0;
    EXPECT_EQ(reprise_graph_submit(json.data(), json.size(), &want, &graph),
              REPRISE_PENDING);
    EXPECT_NE(graph, 0u);
    return graph;
  }

  bool GraphsArrived(Collector* collector, size_t n) {
    return collector->WaitForSession(
        [n](const Session& session) { return session.graphs.size() == n; });
  }

  static void SendPlan(Collector* collector, uint64_t graph, uint64_t plan,
                       const std::string& json = kPlan) {
    const int fd = MemfdOf(json, kAllSeals);
    collector->Send(REPRISE_MSG_PLAN, PlanBody(graph, plan, json.size()), {fd});
    close(fd);
  }

  static reprise_plan EmptyPlan() {
    reprise_plan plan = {};
    plan.struct_size = sizeof plan;
    return plan;
  }

  static reprise_status Wait(uint64_t graph, uint64_t have, uint32_t ms,
                             reprise_plan* plan) {
    *plan = EmptyPlan();
    return reprise_plan_wait(graph, have, ms, plan);
  }

  static std::string Text(const reprise_plan& plan) {
    return {static_cast<const char*>(plan.json), plan.json_bytes};
  }

  static int OpenDescriptors() {
    int n = 0;
    for (int fd = 0; fd < 512; ++fd) n += fcntl(fd, F_GETFD) >= 0;
    return n;
  }
};

TEST_F(PlanTest, AGraphGoesUpAndAPlanComesDown) {
  Collector collector(socket_, shelf_);
  Start();

  const uint64_t graph = Submit();
  ASSERT_TRUE(GraphsArrived(&collector, 1));
  SendPlan(&collector, graph, 7);
  reprise_plan plan;
  ASSERT_EQ(Wait(graph, 0, 10000, &plan), REPRISE_OK);

  const GraphMessage sent = collector.OnlySession().graphs[0];
  EXPECT_EQ(sent.id, graph);
  EXPECT_EQ(sent.json, kGraph);
  EXPECT_EQ(sent.budget, "0.5x");
  EXPECT_EQ(sent.capabilities, "tape:seeded_ok=1");
  EXPECT_EQ(sent.static_bytes, 11u);
  EXPECT_EQ(sent.device_bytes, 22u);
  EXPECT_EQ(plan.graph_id, graph);
  EXPECT_EQ(plan.plan_id, 7u);
  EXPECT_EQ(plan.predicted_peak, 100u);
  EXPECT_EQ(plan.predicted_ns, 200u);
  EXPECT_EQ(plan.struct_size, sizeof plan);
  EXPECT_EQ(Text(plan), kPlan);
  reprise_plan_release(&plan);
  EXPECT_EQ(plan.json, nullptr);
  reprise_plan_release(&plan);  // a second release does nothing
}

TEST_F(PlanTest, WhatIsFreeOnTheDeviceIsSentWhereTheCallerKnowsOfIt) {
  Collector collector(socket_, shelf_);
  Start();
  reprise_want want = Want("fit");
  want.device_free_bytes = 33;

  Submit(kGraph, want);
  want.struct_size = offsetof(reprise_want, device_free_bytes);
  Submit("{\"other\":1}", want);  // a caller from before this field existed

  ASSERT_TRUE(GraphsArrived(&collector, 2));
  EXPECT_EQ(collector.OnlySession().graphs[0].device_free_bytes, 33u);
  EXPECT_EQ(collector.OnlySession().graphs[1].device_free_bytes, 0u);
  EXPECT_EQ(collector.OnlySession().graphs[1].budget, "fit");
}

TEST_F(PlanTest, OneGraphIsAskedForInSeveralWaysAndEachHasItsOwnAnswer) {
  Collector collector(socket_, shelf_);
  Start();
  reprise_want roomy = Want(), tight = Want();
  roomy.request_id = 1;
  tight.request_id = 2;
  tight.reserve_bytes = 500;

  const uint64_t graph = Submit(kGraph, roomy);
  EXPECT_EQ(Submit(kGraph, tight), graph);
  ASSERT_TRUE(GraphsArrived(&collector, 2));
  SendPlan(&collector, 2, 8, "tight");
  SendPlan(&collector, 1, 7, "roomy");
  reprise_plan first, second;
  ASSERT_EQ(Wait(1, 0, 10000, &first), REPRISE_OK);
  ASSERT_EQ(Wait(2, 0, 10000, &second), REPRISE_OK);

  const GraphMessage sent = collector.OnlySession().graphs[1];
  EXPECT_EQ(sent.request_id, 2u);
  EXPECT_EQ(sent.reserve_bytes, 500u);
  EXPECT_EQ(Text(first), "roomy");
  EXPECT_EQ(Text(second), "tight");
  EXPECT_EQ(first.graph_id, graph);
  EXPECT_EQ(second.graph_id, graph);
  reprise_plan_release(&first);
  reprise_plan_release(&second);
}

TEST_F(PlanTest, FieldsThatNobodyFillsAreLeftOutForCollectorsOfBefore) {
  Collector collector(socket_, shelf_);
  Start();
  reprise_want want = Want();

  Submit("{\"plain\":1}", want);
  want.device_free_bytes = 33;
  Submit("{\"device\":1}", want);
  want.struct_size = offsetof(reprise_want, reserve_bytes);
  want.reserve_bytes = want.request_id = 7;  // beyond what the caller knows
  Submit("{\"before\":1}", want);
  want.struct_size = sizeof want;
  Submit("{\"all\":1}", want);

  ASSERT_TRUE(GraphsArrived(&collector, 4));
  const auto& graphs = collector.OnlySession().graphs;
  EXPECT_EQ(graphs[0].fixed_bytes, size_t{REPRISE_MSG_GRAPH_LEAST});
  EXPECT_EQ(graphs[1].fixed_bytes, size_t{REPRISE_MSG_GRAPH_DEVICE});
  EXPECT_EQ(graphs[2].fixed_bytes, size_t{REPRISE_MSG_GRAPH_DEVICE});
  EXPECT_EQ(graphs[3].fixed_bytes, sizeof(reprise_msg_graph));
}

TEST_F(PlanTest, TheGraphIdIsFnv1aOfTheBytes) {
  Collector collector(socket_, shelf_);
  Start();

  EXPECT_EQ(Submit("a"), 0xaf63dc4c8601ec8cu);
}

TEST_F(PlanTest, AnEqualGraphIsNotSentTwiceButOtherWishesAre) {
  Collector collector(socket_, shelf_);
  Start();

  const uint64_t graph = Submit();
  EXPECT_EQ(Submit(), graph);
  EXPECT_EQ(Submit(), graph);
  EXPECT_EQ(Submit(kGraph, Want("0.4x")), graph);
  EXPECT_NE(Submit("{\"other\":1}"), graph);

  ASSERT_TRUE(GraphsArrived(&collector, 3));
  EXPECT_EQ(collector.OnlySession().graphs[1].budget, "0.4x");
  EXPECT_EQ(collector.OnlySession().graphs[2].json, "{\"other\":1}");
}

TEST_F(PlanTest, ANewerPlanReplacesTheOldOneWhichStaysMappedUntilReleased) {
  Collector collector(socket_, shelf_);
  Start();
  const uint64_t graph = Submit();
  SendPlan(&collector, graph, 7, "seven");
  reprise_plan seven, eight;
  ASSERT_EQ(Wait(graph, 0, 10000, &seven), REPRISE_OK);

  EXPECT_EQ(Wait(graph, 7, 0, &eight), REPRISE_PENDING);
  SendPlan(&collector, graph, 8, "eight");
  ASSERT_EQ(Wait(graph, 7, 10000, &eight), REPRISE_OK);

  EXPECT_EQ(Text(seven), "seven");
  EXPECT_EQ(Text(eight), "eight");
  reprise_plan_release(&seven);
  reprise_plan_release(&eight);
}

TEST_F(PlanTest, PollNeverWaits) {
  Collector collector(socket_, shelf_);
  Start();
  const uint64_t graph = Submit();
  reprise_plan plan = EmptyPlan();

  EXPECT_EQ(reprise_plan_poll(graph, 0, &plan), REPRISE_PENDING);
  SendPlan(&collector, graph, 7);
  while (reprise_plan_poll(graph, 0, &plan) == REPRISE_PENDING) {
  }
  EXPECT_EQ(plan.plan_id, 7u);
  reprise_plan_release(&plan);
}

TEST_F(PlanTest, WaitingEndsAtTheDeadlineWithPending) {
  Collector collector(socket_, shelf_);
  Start();
  const uint64_t graph = Submit();
  const auto begin = std::chrono::steady_clock::now();

  reprise_plan plan;
  EXPECT_EQ(Wait(graph, 0, 100, &plan), REPRISE_PENDING);

  EXPECT_GE(std::chrono::steady_clock::now() - begin,
            std::chrono::milliseconds(100));
  EXPECT_EQ(plan.json, nullptr);
}

TEST_F(PlanTest, CtrlCEndsWaitingWithPending) {
  Collector collector(socket_, shelf_);
  Start();
  const uint64_t graph = Submit();
  struct sigaction action = {};
  action.sa_handler = [](int) {};
  sigaction(SIGALRM, &action, nullptr);
  const itimerval soon = {{0, 20000}, {0, 20000}};
  setitimer(ITIMER_REAL, &soon, nullptr);

  const auto begin = std::chrono::steady_clock::now();
  reprise_plan plan;
  EXPECT_EQ(Wait(graph, 0, 60000, &plan), REPRISE_PENDING);

  const itimerval never = {};
  setitimer(ITIMER_REAL, &never, nullptr);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(30));
}

TEST_F(PlanTest, APlanArrivesThroughAnotherThreadsSteps) {
  Collector collector(socket_, shelf_);
  Start();
  const uint64_t graph = Submit();
  std::atomic<bool> stop{false};
  std::thread trainer([&] {
    for (uint64_t step = 0; !stop; ++step) reprise_step(step);
  });

  SendPlan(&collector, graph, 7);
  reprise_plan plan;
  EXPECT_EQ(Wait(graph, 0, 20000, &plan), REPRISE_OK);

  stop = true;
  trainer.join();
  reprise_plan_release(&plan);
}

TEST_F(PlanTest, AnImpossibleBudgetIsRefusedWithTheSmallestOne) {
  Collector collector(socket_, shelf_);
  Start();
  const uint64_t graph = Submit();

  collector.Send(
      REPRISE_MSG_PLAN_STATUS,
      PlanStatusBody(graph, REPRISE_PLAN_INFEASIBLE, 3400,
                     "Nothing fits in 3.0 KiB:\nop 17 needs at least 3.4."));
  reprise_plan plan;
  EXPECT_EQ(Wait(graph, 0, 10000, &plan), REPRISE_EREFUSED);

  EXPECT_EQ(plan.predicted_peak, 3400u);
  EXPECT_STREQ(plan.why, "Nothing fits in 3.0 KiB: op 17 needs at least 3.4.");
}

TEST_F(PlanTest, ALongSentenceArrivesWholeAndIsCutForAnOlderCallerAlone) {
  Collector collector(socket_, shelf_);
  Start();
  const uint64_t graph = Submit();
  const std::string sentence =
      "Nothing fits: op 17 reads " + std::string(800, 'x') + " at once.";
  collector.Send(
      REPRISE_MSG_PLAN_STATUS,
      PlanStatusBody(graph, REPRISE_PLAN_INFEASIBLE, 3400, sentence));

  reprise_plan plan;
  EXPECT_EQ(Wait(graph, 0, 10000, &plan), REPRISE_EREFUSED);
  EXPECT_EQ(plan.why, sentence);

  memset(&plan, 0x5a, sizeof plan);
  plan.struct_size = offsetof(reprise_plan, why) + 192;
  EXPECT_EQ(reprise_plan_wait(graph, 0, 10000, &plan), REPRISE_EREFUSED);
  EXPECT_EQ(plan.why, sentence.substr(0, 191));
  EXPECT_EQ(plan.why[192], 0x5a);
}

TEST_F(PlanTest, SolvingAndUnreachableArePendingWithAReason) {
  Collector collector(socket_, shelf_);
  Start();
  const uint64_t graph = Submit();
  reprise_plan plan;

  for (const uint32_t status :
       {REPRISE_PLAN_SOLVING, REPRISE_PLAN_UNREACHABLE}) {
    const std::string text = "status " + std::to_string(status);
    collector.Send(REPRISE_MSG_PLAN_STATUS,
                   PlanStatusBody(graph, status, 0, text));
    reprise_status got = REPRISE_PENDING;
    do {
      got = Wait(graph, 0, 1, &plan);
    } while (got == REPRISE_PENDING && plan.why != text);
    EXPECT_EQ(got, REPRISE_PENDING);
  }
}

TEST_F(PlanTest, AfterNotPlannedTheSameGraphIsSentAgain) {
  Collector collector(socket_, shelf_);
  Start();
  const uint64_t graph = Submit();
  collector.Send(REPRISE_MSG_PLAN_STATUS,
                 PlanStatusBody(graph, REPRISE_PLAN_NOT_PLANNED, 0, "no"));
  reprise_plan plan;
  EXPECT_EQ(Wait(graph, 0, 10000, &plan), REPRISE_EREFUSED);
  EXPECT_STREQ(plan.why, "no");

  Submit();

  EXPECT_TRUE(GraphsArrived(&collector, 2));
  EXPECT_EQ(Wait(graph, 0, 0, &plan), REPRISE_PENDING);
}

// A plan that breaks the protocol is not mapped; Wait returns the reason.
struct BadPlan {
  const char* name;
  int seals;
  int64_t announced_minus_real;
  uint64_t plan_id;
  const char* why;
};

class BadPlanTest : public PlanTest,
                    public ::testing::WithParamInterface<BadPlan> {};

TEST_P(BadPlanTest, IsNotUsed) {
  Collector collector(socket_, shelf_);
  Start();
  const uint64_t graph = Submit();
  const BadPlan& bad = GetParam();
  const std::string json = kPlan;

  const int fd = MemfdOf(json, bad.seals);
  collector.Send(
      REPRISE_MSG_PLAN,
      PlanBody(graph, bad.plan_id,
               json.size() + static_cast<uint64_t>(bad.announced_minus_real)),
      {fd});
  close(fd);
  reprise_plan plan;
  EXPECT_EQ(Wait(graph, 0, 10000, &plan), REPRISE_EREFUSED);
  EXPECT_THAT(plan.why, HasSubstr(bad.why));
  EXPECT_EQ(plan.json, nullptr);

  SendPlan(&collector, graph, 9);  // a valid plan afterwards is used
  while (Wait(graph, 0, 1000, &plan) == REPRISE_EREFUSED) {
  }
  EXPECT_EQ(plan.plan_id, 9u);
  reprise_plan_release(&plan);
}

INSTANTIATE_TEST_SUITE_P(
    All, BadPlanTest,
    ::testing::Values(BadPlan{"unsealed", 0, 0, 7, "is not sealed"},
                      BadPlan{"no_write_seal", kAllSeals & ~F_SEAL_WRITE, 0, 7,
                              "is not sealed"},
                      BadPlan{"no_shrink_seal", kAllSeals & ~F_SEAL_SHRINK, 0,
                              7, "is not sealed"},
                      BadPlan{"no_grow_seal", kAllSeals & ~F_SEAL_GROW, 0, 7,
                              "is not sealed"},
                      BadPlan{"no_seal_seal", kAllSeals & ~F_SEAL_SEAL, 0, 7,
                              "is not sealed"},
                      BadPlan{"larger_than_announced", kAllSeals, -1, 7,
                              "does not have the announced size"},
                      BadPlan{"smaller_than_announced", kAllSeals, 4096, 7,
                              "does not have the announced size"},
                      BadPlan{"above_the_limit", kAllSeals, 16 << 20, 7,
                              "is larger than allowed"},
                      BadPlan{"without_id", kAllSeals, 0, 0, "has no id"}),
    [](const auto& test) { return test.param.name; });

TEST_F(PlanTest, SomethingThatIsNoMemfdIsNotUsed) {
  Collector collector(socket_, shelf_);
  Start();
  const uint64_t graph = Submit();

  const int fd = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
  collector.Send(REPRISE_MSG_PLAN, PlanBody(graph, 7, 10), {fd});
  close(fd);
  reprise_plan plan;
  EXPECT_EQ(Wait(graph, 0, 10000, &plan), REPRISE_EREFUSED);

  EXPECT_THAT(plan.why, HasSubstr("is not"));
}

TEST_F(PlanTest, SurplusDescriptorsAreClosed) {
  Collector collector(socket_, shelf_);
  Start();
  const uint64_t graph = Submit();
  ASSERT_TRUE(GraphsArrived(&collector, 1));
  reprise_plan plan;
  SendPlan(&collector, graph, 1);
  ASSERT_EQ(Wait(graph, 0, 10000, &plan), REPRISE_OK);
  reprise_plan_release(&plan);
  const int before = OpenDescriptors();

  const int fd = MemfdOf(kPlan, kAllSeals);
  const uint64_t bytes = strlen(kPlan);
  // Four descriptors, twenty (more than the agent has room for), one on a
  // message that takes none, and one for a graph that was never submitted.
  collector.Send(REPRISE_MSG_PLAN, PlanBody(graph, 2, bytes),
                 std::vector<int>(4, fd));
  collector.Send(REPRISE_MSG_PLAN, PlanBody(graph, 3, bytes),
                 std::vector<int>(20, fd));
  collector.Send(REPRISE_MSG_COMMAND, CommandBody(REPRISE_COMMAND_FLUSH), {fd});
  collector.Send(REPRISE_MSG_PLAN, PlanBody(graph + 1, 3, bytes), {fd});
  SendPlan(&collector, graph, 4);
  do {
    ASSERT_EQ(Wait(graph, 1, 10000, &plan), REPRISE_OK);
    reprise_plan_release(&plan);
  } while (plan.plan_id != 4);
  close(fd);

  EXPECT_EQ(OpenDescriptors(), before);
}

TEST_F(PlanTest, ARestartedDaemonGetsTheNewestGraphAgain) {
  auto collector = std::make_unique<Collector>(socket_, shelf_);
  Start();
  Submit("{\"older\":1}");
  const uint64_t graph = Submit();
  ASSERT_TRUE(GraphsArrived(collector.get(), 2));

  collector.reset();
  reprise_plan plan;
  EXPECT_EQ(Wait(graph, 0, 10, &plan), REPRISE_PENDING);  // it may come back
  collector = std::make_unique<Collector>(socket_, shelf_);
  // Waiting reconnects without a step.
  std::thread answer([&] {
    EXPECT_TRUE(GraphsArrived(collector.get(), 3));
    SendPlan(collector.get(), graph, 7);
  });
  EXPECT_EQ(Wait(graph, 0, 30000, &plan), REPRISE_OK);
  answer.join();

  EXPECT_EQ(collector->OnlySession().graphs[2].json, kGraph);
  reprise_plan_release(&plan);
}

TEST_F(PlanTest, ADaemonThatDiesWhileWaitingLeavesPending) {
  auto collector = std::make_unique<Collector>(socket_, shelf_);
  Start();
  const uint64_t graph = Submit();
  ASSERT_TRUE(GraphsArrived(collector.get(), 1));
  std::thread killer([&] { collector.reset(); });

  reprise_plan plan;
  EXPECT_EQ(Wait(graph, 0, 300, &plan), REPRISE_PENDING);

  killer.join();
}

TEST_F(PlanTest, AGraphForADaemonThatIsAwayIsQueued) {
  auto collector = std::make_unique<Collector>(socket_, shelf_);
  Start();
  ASSERT_TRUE(collector->WaitForSession(
      [](const Session& session) { return !session.capabilities.empty(); }));
  collector.reset();
  reprise_step(1);

  const uint64_t graph = Submit();
  collector = std::make_unique<Collector>(socket_, shelf_);
  reprise_plan plan;
  while (collector->OnlySession().graphs.empty())
    EXPECT_EQ(Wait(graph, 0, 20, &plan), REPRISE_PENDING);

  EXPECT_EQ(collector->OnlySession().graphs[0].id, graph);
}

TEST_F(PlanTest, WithoutACollectorTrainingGoesOnUnplanned) {
  uint64_t graph = 0;
  const reprise_want want = Want();
  reprise_plan plan;

  EXPECT_EQ(reprise_graph_submit(kGraph, 10, &want, &graph), REPRISE_INERT);
  Start();
  EXPECT_EQ(reprise_graph_submit(kGraph, 10, &want, &graph), REPRISE_INERT);
  EXPECT_EQ(Wait(graph, 0, 10000, &plan), REPRISE_INERT);
  EXPECT_THAT(plan.why, HasSubstr("no collector at"));
}

TEST_F(PlanTest, RejectsBadArguments) {
  Collector collector(socket_, shelf_);
  Start();
  uint64_t graph = 0;
  reprise_want want = Want();
  reprise_plan plan = EmptyPlan();

  EXPECT_EQ(reprise_graph_submit(nullptr, 1, &want, &graph), REPRISE_EINVAL);
  EXPECT_EQ(reprise_graph_submit("x", 0, &want, &graph), REPRISE_EINVAL);
  EXPECT_EQ(reprise_graph_submit("x", 1, nullptr, &graph), REPRISE_EINVAL);
  EXPECT_EQ(reprise_graph_submit("x", 1, &want, nullptr), REPRISE_EINVAL);
  EXPECT_EQ(reprise_graph_submit("x", (64u << 20) + 1, &want, &graph),
            REPRISE_ETOOBIG);
  const std::string too_long(5000, 'x');
  want.capabilities = too_long.c_str();
  EXPECT_EQ(reprise_graph_submit("x", 1, &want, &graph), REPRISE_ETOOBIG);
  EXPECT_EQ(reprise_plan_poll(12345, 0, &plan), REPRISE_EINVAL);
  EXPECT_THAT(plan.why, HasSubstr("0000000000003039"));
  plan.struct_size = 0;
  EXPECT_EQ(reprise_plan_poll(1, 0, &plan), REPRISE_EINVAL);
  EXPECT_EQ(reprise_plan_poll(1, 0, nullptr), REPRISE_EINVAL);
  reprise_plan_release(nullptr);
}

TEST_F(PlanTest, ALargeGraphAndManyOfThemPass) {
  Collector collector(socket_, shelf_);
  Start();

  std::string large(3 << 20, 'g');
  Submit(large);
  // More graphs than the agent remembers: all are sent, the oldest are
  // forgotten.
  uint64_t first = 0, last = 0;
  for (int i = 0; i < 40; ++i) {
    last = Submit("{\"graph\":" + std::to_string(i) + "}");
    if (i == 0) first = last;
    ASSERT_TRUE(GraphsArrived(&collector, 2u + static_cast<size_t>(i)));
  }

  EXPECT_EQ(collector.OnlySession().graphs[0].json, large);
  reprise_plan plan;
  EXPECT_EQ(Wait(first, 0, 0, &plan), REPRISE_EINVAL);
  EXPECT_EQ(Wait(last, 0, 0, &plan), REPRISE_PENDING);
}

TEST_F(PlanTest, APlanStruckByAnOlderCallerIsWrittenOnlyAsFarAsItGoes) {
  Collector collector(socket_, shelf_);
  Start();
  const uint64_t graph = Submit();
  SendPlan(&collector, graph, 7);
  reprise_plan plan;
  memset(&plan, 0x5a, sizeof plan);
  plan.struct_size = offsetof(reprise_plan, why);

  ASSERT_EQ(reprise_plan_wait(graph, 0, 10000, &plan), REPRISE_OK);

  EXPECT_EQ(plan.struct_size, offsetof(reprise_plan, why));
  EXPECT_EQ(Text(plan), kPlan);
  EXPECT_EQ(plan.why[0], 0x5a);
  reprise_plan_release(&plan);
}

}  // namespace
}  // namespace reprise::profiler::testing
