// SPDX-License-Identifier: Apache-2.0
//
// A machine's daemon and a central one, in this process.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/str_cat.h"
#include "profiler/include/reprise_wire.h"
#include "server/forward/uplink.h"
#include "tests/server/server_harness.h"

namespace reprise::server {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr int64_t kSmallestPeak = 1024 + 8192 + 8192;  // of SmallGraph

// A port that was free a moment ago, so that the centre can come back to it.
int FreePort() {
  const int fd = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  auto* at = reinterpret_cast<sockaddr*>(&address);
  EXPECT_EQ(::bind(fd, at, size), 0);
  EXPECT_EQ(::getsockname(fd, at, &size), 0);
  ::close(fd);
  return ntohs(address.sin_port);
}

DaemonOptions CentreOptions() {
  DaemonOptions options;
  options.listen = StrCat("127.0.0.1:", FreePort());
  return options;
}

TEST(ForwardingTest, ADaemonDoesNotForwardToItself) {
  const TemporaryFolder folder;
  DaemonOptions options = CentreOptions();
  options.data_dir = folder.path() + "/data";
  options.agent_socket = folder.path() + "/run/agent.sock";
  { const TestServer before(options); }  // makes the token
  options.forward.target = options.listen;
  options.forward.token_file = options.data_dir + "/token";
  TestServer server(options);
  ASSERT_TRUE(Eventually([&] {
    grpc::ClientContext context;
    v1::ServerStatus status;
    return server.query()
               .GetStatus(&context, v1::StatusRequest(), &status)
               .ok() &&
           status.forward().trouble().find("is this daemon itself") !=
               std::string::npos;
  }));
}

class Forwarding : public ::testing::Test {
 protected:
  Forwarding() : centre_(CentreOptions()), node_(NodeOptions()) {}

  DaemonOptions NodeOptions() {
    DaemonOptions options = TestServer::DefaultOptions();
    options.forward.target = centre_.daemon().grpc_address();
    options.forward.token_file = centre_.folder() + "/data/token";
    options.data_dir = folder_.path() + "/data";
    options.agent_socket = folder_.path() + "/run/agent.sock";
    return options;
  }

  v1::ForwardStatus Behind() {
    grpc::ClientContext context;
    v1::ServerStatus status;
    EXPECT_TRUE(
        node_.query().GetStatus(&context, v1::StatusRequest(), &status).ok());
    return status.forward();
  }

  bool CentreHasAll() {
    return Eventually([&] {
      const v1::ForwardStatus now = Behind();
      return now.trouble().empty() && now.sessions() == 0 && now.runs() == 0 &&
             now.chunks() == 0 &&
             centre_.CountRows("SELECT count(*) FROM chunks") ==
                 node_.CountRows("SELECT count(*) FROM chunks") &&
             centre_.CountRows("SELECT count(*) FROM sessions") ==
                 node_.CountRows("SELECT count(*) FROM sessions");
    });
  }

  // Plans the small graph for a run at the node, and reports a step under it.
  v1::Plan TrainUnderAPlan(Sender& sender, int64_t peak_bytes) {
    v1::PlanRequest request =
        RequestFor(node_.PutGraph(SmallGraph(), sender.hello.run_id()),
                   std::to_string(kSmallestPeak));
    request.set_run_id(sender.hello.run_id());
    const v1::Plan plan = node_.Plan(request);
    v1::Columns columns;
    v1::PlanState& state = *columns.add_states();
    state.set_plan_id(plan.plan_id());
    state.set_state(REPRISE_PLAN_APPLIED);
    v1::StepReport& step = *columns.add_steps();
    step.set_step(1);
    step.set_planned(true);
    step.set_plan_id(plan.plan_id());
    step.set_peak_bytes(peak_bytes);
    step.set_step_ns(1000);
    v1::VerifyReport& check = *columns.add_checks();
    check.set_step(1);
    check.set_plan_id(plan.plan_id());
    check.set_checked(4);
    check.set_bitwise(true);
    EXPECT_TRUE(sender.SendChunk(MakeChunk(1, columns, 0)));
    EXPECT_TRUE(sender.AwaitAck(1));
    return plan;
  }

  TemporaryFolder folder_;
  TestServer centre_;
  TestServer node_;
};

TEST_F(Forwarding, TheCentreHasTheRunItsPlanAndItsVerdict) {
  Sender sender(node_.ingest(), "s1", "r1");
  ASSERT_TRUE(sender.Greet());
  const v1::Plan plan = TrainUnderAPlan(sender, kSmallestPeak);
  v1::Up names;
  names.mutable_defs()->add_names()->set_id(7);
  names.mutable_defs()->mutable_names(0)->set_text("aten.mm");
  ASSERT_TRUE(sender.Write(names));
  for (uint64_t seq = 2; seq <= 100; ++seq) sender.SendChunk(OpChunk(seq));
  ASSERT_TRUE(sender.AwaitAck(100));
  ASSERT_TRUE(sender.Bye());
  ASSERT_TRUE(sender.Finish().ok());
  ASSERT_TRUE(CentreHasAll());

  const v1::Run there = centre_.GetRun("r1");
  const v1::Run here = node_.GetRun("r1");
  EXPECT_EQ(there.state(), v1::RUN_STATE_FINISHED);
  EXPECT_EQ(there.name(), "train");
  EXPECT_EQ(there.records(), here.records());
  EXPECT_EQ(there.steps(), here.steps());
  EXPECT_EQ(there.ended_ns(), here.ended_ns());
  EXPECT_EQ(there.plan_id(), plan.plan_id());
  EXPECT_EQ(there.graph_id(), here.graph_id());
  EXPECT_TRUE(there.verdict().validated()) << there.verdict().sentence();
  EXPECT_EQ(there.verdict().sentence(), here.verdict().sentence());
  EXPECT_EQ(centre_.CountRows("SELECT count(*) FROM names"), 1);
  EXPECT_EQ(Behind().behind_since_ns(), 0);
}

TEST_F(Forwarding, NothingIsLostOrDoubledWhileTheCentreIsAway) {
  Sender sender(node_.ingest(), "s1", "r1");
  ASSERT_TRUE(sender.Greet());
  for (uint64_t seq = 1; seq <= 20; ++seq) sender.SendChunk(OpChunk(seq));
  ASSERT_TRUE(sender.AwaitAck(20));
  centre_.Stop();
  // The job and its machine's daemon go on.
  for (uint64_t seq = 21; seq <= 300; ++seq) sender.SendChunk(OpChunk(seq));
  ASSERT_TRUE(sender.AwaitAck(300));
  ASSERT_TRUE(Eventually([&] {
    const v1::ForwardStatus now = Behind();
    return !now.trouble().empty() && now.chunks() > 0;
  }));
  EXPECT_THAT(Behind().trouble(), HasSubstr("cannot be reached"));
  EXPECT_GT(Behind().behind_since_ns(), 0);
  ASSERT_TRUE(sender.Bye());

  centre_.Start();

  ASSERT_TRUE(CentreHasAll());
  EXPECT_EQ(centre_.CountRows("SELECT count(*) FROM chunks"), 300);
  EXPECT_EQ(centre_.GetRun("r1").records(), 900u);
  EXPECT_EQ(centre_.GetRun("r1").lost_chunks(), 0u);
}

TEST_F(Forwarding, TheNodesDaemonGoesOnWhereItWasAfterARestart) {
  centre_.Stop();
  {
    Sender sender(node_.ingest(), "s1", "r1");
    ASSERT_TRUE(sender.Greet());
    for (uint64_t seq = 1; seq <= 30; ++seq) sender.SendChunk(OpChunk(seq));
    ASSERT_TRUE(sender.AwaitAck(30));
    Sender next(node_.ingest(), "s1", "r1", /*epoch=*/2);
    ASSERT_TRUE(next.Greet());
    for (uint64_t seq = 1; seq <= 5; ++seq) next.SendChunk(OpChunk(seq));
    ASSERT_TRUE(next.AwaitAck(5));
    ASSERT_TRUE(next.Bye(/*killed=*/true));
    ASSERT_TRUE(next.Finish().ok());
  }
  node_.Stop();
  centre_.Start();
  node_.Start();
  ASSERT_TRUE(CentreHasAll());
  EXPECT_EQ(centre_.CountRows("SELECT count(*) FROM chunks"), 35);
  EXPECT_EQ(centre_.GetRun("r1").state(), v1::RUN_STATE_KILLED);

  // What was acknowledged is not offered again.
  node_.Stop();
  node_.Start();
  ASSERT_TRUE(CentreHasAll());
  EXPECT_EQ(Behind().acked(), 0u);
}

TEST_F(Forwarding, MoreSessionsThanAreSentAtOnceAllArrive) {
  constexpr int kSessions = static_cast<int>(Uplink::kMostSessions) + 6;
  centre_.Stop();
  for (int i = 0; i < kSessions; ++i) {
    Sender sender(node_.ingest(), StrCat("s", i), StrCat("r", i));
    ASSERT_TRUE(sender.Greet());
    sender.SendChunk(OpChunk(1));
    ASSERT_TRUE(sender.AwaitAck(1));
    ASSERT_TRUE(sender.Bye());
    ASSERT_TRUE(sender.Finish().ok());
  }
  ASSERT_TRUE(Eventually([&] { return Behind().sessions() == kSessions; }));
  EXPECT_EQ(Behind().chunks(), static_cast<uint64_t>(kSessions));
  centre_.Start();
  ASSERT_TRUE(CentreHasAll());
  EXPECT_EQ(centre_.CountRows("SELECT count(*) FROM runs"), kSessions);
}

TEST_F(Forwarding, OfTwoMachinesOneRunHasOneVerdict) {
  DaemonOptions options = NodeOptions();
  options.data_dir = folder_.path() + "/data2";
  options.agent_socket = folder_.path() + "/run2/agent.sock";
  TestServer second(options);
  Sender first(node_.ingest(), "s1", "r1");
  ASSERT_TRUE(first.Greet());
  Sender other(second.ingest(), "s2", "r1");
  other.hello.mutable_info()->set_rank(1);
  ASSERT_TRUE(other.Greet());
  // The other machine's step needs more than the plan's budget; its daemon does
  // not have the plan, and may be the first to be heard.
  v1::StepReport step;
  step.set_step(1);
  step.set_planned(true);
  step.set_peak_bytes(2 * kSmallestPeak);
  v1::PlanRequest request = RequestFor(node_.PutGraph(SmallGraph(), ""),
                                       std::to_string(kSmallestPeak));
  step.set_plan_id(node_.Plan(request).plan_id());
  other.SendChunk(StepChunk(1, {step}));
  ASSERT_TRUE(other.AwaitAck(1));
  ASSERT_TRUE(Eventually(
      [&] { return centre_.CountRows("SELECT count(*) FROM steps") == 1; }));
  EXPECT_EQ(centre_.GetRun("r1").verdict().over_budget_steps(), 0u);

  TrainUnderAPlan(first, kSmallestPeak);
  ASSERT_TRUE(first.Bye());
  ASSERT_TRUE(Eventually(
      [&] { return node_.GetRun("r1").state() == v1::RUN_STATE_FINISHED; }));
  EXPECT_EQ(centre_.GetRun("r1").state(), v1::RUN_STATE_RUNNING);
  ASSERT_TRUE(other.Bye());

  ASSERT_TRUE(Eventually(
      [&] { return centre_.GetRun("r1").state() == v1::RUN_STATE_FINISHED; }));
  ASSERT_TRUE(Eventually(
      [&] { return centre_.GetRun("r1").verdict().planned_steps() == 2; }));
  EXPECT_EQ(centre_.CountRows("SELECT count(*) FROM runs"), 1);
  EXPECT_EQ(centre_.GetRun("r1").verdict().over_budget_steps(), 1u);
  EXPECT_FALSE(centre_.GetRun("r1").verdict().validated());
}

TEST_F(Forwarding, EachLauncherFindsTheRunUnderTheIdThatItGaveIt) {
  Sender sender(node_.ingest(), "s1", "of-the-first-rank");
  (*sender.hello.mutable_info()->mutable_labels())["launch"] = "of-this-one";
  ASSERT_TRUE(sender.Greet());
  ASSERT_TRUE(Eventually(
      [&] { return centre_.CountRows("SELECT count(*) FROM sessions") == 1; }));
  for (TestServer* server : {&node_, &centre_}) {
    EXPECT_EQ(server->GetRun("of-this-one").run_id(), "of-the-first-rank");
  }
}

TEST_F(Forwarding, TheCentrePlansNothingForStepsThatTheirOwnDaemonHasSeen) {
  Sender sender(node_.ingest(), "s1", "r1");
  ASSERT_TRUE(sender.Greet());
  const v1::Plan plan = TrainUnderAPlan(sender, kSmallestPeak + 1);
  // The node tries to replace it, and finds no smaller one.
  ASSERT_TRUE(Eventually(
      [&] { return centre_.CountRows("SELECT count(*) FROM steps") == 1; }));
  EXPECT_THAT(centre_.Http("GET /metrics HTTP/1.1\r\nHost: localhost\r\n"
                           "Connection: close\r\n\r\n"),
              AllOf(HasSubstr("reprise_replans_total"),
                    Not(HasSubstr("reprise_plans_total{"))));
  EXPECT_EQ(centre_.GetRun("r1").plan_id(), node_.GetRun("r1").plan_id());
}

TEST_F(Forwarding, AWindowAskedForAtTheCentreReachesTheJob) {
  Sender sender(node_.ingest(), "s1", "r1");
  ASSERT_TRUE(sender.Greet());
  sender.SendChunk(OpChunk(1));
  ASSERT_TRUE(sender.AwaitAck(1));
  ASSERT_TRUE(Eventually(
      [&] { return centre_.CountRows("SELECT count(*) FROM chunks") == 1; }));
  const auto control = v1::Control::NewStub(centre_.channel());
  v1::StartWindowRequest request;
  request.set_run_id("r1");
  request.set_steps(3);
  v1::WindowStatus window;
  grpc::ClientContext context;

  const grpc::Status asked = control->StartWindow(&context, request, &window);

  ASSERT_TRUE(asked.ok()) << asked.error_message();
  const std::optional<v1::Down> down = sender.Read();
  ASSERT_TRUE(down && down->has_window());
  EXPECT_EQ(down->window().steps(), 3u);
}

}  // namespace
}  // namespace reprise::server
