// SPDX-License-Identifier: Apache-2.0
//
// Who did what: a line of the log for every call that plans or changes something,
// with the user the kernel knows.
#include "server/core/change.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/str_cat.h"
#include "reprise/v1/admin.grpc.pb.h"
#include "server/net/address.h"
#include "tests/server/log_lines.h"
#include "tests/server/server_harness.h"

namespace reprise::server {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;
using ::testing::StartsWith;

std::string Me() { return StrCat("uid ", ::getuid()); }

TEST(ChangeTest, APlanIsLoggedWithTheUserWhoAskedOverGrpc) {
  TestServer server;
  v1::PlanRequest request =
      RequestFor(server.PutGraph(SmallGraph(), "r1"), "0.9x");
  request.set_run_id("r1");
  LogLines log;

  const v1::Plan plan = server.Plan(request);

  const auto change = log.OnlyChange();
  EXPECT_EQ(change["action"], "plan");
  EXPECT_EQ(change["who"], Me());
  EXPECT_THAT(change["peer"].get<std::string>(), StartsWith("127.0.0.1:"));
  EXPECT_EQ(change["run_id"], "r1");
  EXPECT_EQ(change["subject"], "plan " + plan.plan_id());
  EXPECT_EQ(change["outcome"], "ok");
  EXPECT_EQ(change["detail"], plan.sentence());
  EXPECT_EQ(change["level"], "info");
  const std::string peer = change["peer"];
  EXPECT_EQ(change["message"],
            StrCat(Me(), " (", peer, "): plan run r1, plan ", plan.plan_id(),
                   ": ok: ", plan.sentence()));
}

TEST(ChangeTest, AStepGraphIsLoggedWithTheUserWhoSentIt) {
  TestServer server;
  LogLines log;

  const std::string graph_id = server.PutGraph(SmallGraph(), "r1");

  const auto change = log.OnlyChange();
  EXPECT_EQ(change["action"], "graph");
  EXPECT_EQ(change["who"], Me());
  EXPECT_THAT(change["peer"].get<std::string>(), StartsWith("127.0.0.1:"));
  EXPECT_EQ(change["run_id"], "r1");
  EXPECT_EQ(change["subject"], "graph " + graph_id);
  EXPECT_EQ(change["outcome"], "ok");
}

TEST(ChangeTest, AStepGraphThatIsRefusedIsLoggedWithTheReason) {
  TestServer server;
  LogLines log;
  grpc::ClientContext context;
  v1::GraphRef ref;
  const auto writer = server.planner().PutGraph(&context, &ref);
  v1::GraphPart part;
  part.set_run_id("r1");
  part.set_data("no step graph");
  writer->Write(part);
  writer->WritesDone();
  ASSERT_FALSE(writer->Finish().ok());

  const auto change = log.OnlyChange();
  EXPECT_EQ(change["action"], "graph");
  EXPECT_EQ(change["run_id"], "r1");
  EXPECT_EQ(change["outcome"], "invalid_argument");
  EXPECT_NE(change["detail"], "");
}

TEST(ChangeTest, WhatFailedIsLoggedWithItsErrorAndTheUserWhoAskedOverHttp) {
  TestServer server;
  LogLines log;

  (void)server.Post("/reprise.v1.Control/StartWindow", "application/json",
                    R"({"runId":"nobody","steps":3})");

  const auto change = log.OnlyChange();
  EXPECT_EQ(change["action"], "window");
  EXPECT_EQ(change["who"], Me());
  EXPECT_EQ(change["run_id"], "nobody");
  EXPECT_EQ(change["subject"], "3 steps");
  EXPECT_EQ(change["outcome"], "not_found");
  EXPECT_THAT(change["detail"].get<std::string>(),
              HasSubstr("there is no run \"nobody\""));
}

TEST(ChangeTest, ABeginningOfARunStandsForItsId) {
  TestServer server;
  server.PutGraph(SmallGraph(), "run-1");
  LogLines log;

  (void)server.Post("/reprise.v1.Control/StartWindow", "application/json",
                    R"({"runId":"latest","steps":3})");

  const auto change = log.OnlyChange();
  EXPECT_EQ(change["run_id"], "run-1");
}

TEST(ChangeTest, AJobsPlanIsAppliedInTheNameOfWhoOpenedItsSession) {
  TestServer server;
  LogLines log;
  Sender sender(server.ingest(), "s1", "r1");
  sender.hello.mutable_info()->set_uid(4711);  // a claim, and not believed
  sender.hello.mutable_info()->set_pid(42);
  ASSERT_TRUE(sender.Greet());
  v1::Columns columns;
  for (const uint32_t state : {1, 2, 5}) {
    v1::PlanState& said = *columns.add_states();
    said.set_plan_id(state == 5 ? "" : "00000000000000aa");
    said.set_state(state);
    said.set_why(state == 2 ? "an op does not match" : "");
  }
  v1::VerifyReport& check = *columns.add_checks();
  check.set_plan_id("00000000000000aa");
  check.set_failed(true);
  check.set_checked(10);
  check.set_differing(3);
  ASSERT_TRUE(sender.SendChunk(MakeChunk(1, columns, 0)));
  ASSERT_TRUE(sender.AwaitAck(1)) << sender.Finish().error_message();

  // That the job has no plan is nothing that was done to it.
  const std::vector<json> changes = log.Changes();
  ASSERT_EQ(changes.size(), 4u);
  EXPECT_EQ(changes[0]["action"], "session");
  EXPECT_EQ(changes[0]["subject"], "session s1");
  EXPECT_EQ(changes[1]["action"], "withdraw");
  EXPECT_EQ(changes[1]["detail"], "a check of step 0 found 3 differing values");
  EXPECT_EQ(changes[2]["action"], "apply");
  EXPECT_EQ(changes[2]["subject"], "plan 00000000000000aa");
  EXPECT_EQ(changes[2]["outcome"], "ok");
  EXPECT_EQ(changes[3]["outcome"], "refused");
  EXPECT_EQ(changes[3]["detail"], "an op does not match");
  for (const json& change : changes) {
    EXPECT_EQ(change["who"], Me());
    EXPECT_EQ(change["run_id"], "r1");
  }
}

TEST(ChangeTest, ASessionThatComesBackAndAChunkThatIsSentTwiceAreNoChange) {
  TestServer server;
  v1::Columns columns;
  columns.add_states()->set_state(1);
  LogLines log;
  for (int time = 0; time < 2; ++time) {
    Sender sender(server.ingest(), "s1", "r1");
    ASSERT_TRUE(sender.Greet());
    ASSERT_TRUE(sender.SendChunk(MakeChunk(1, columns, 0)));
    ASSERT_TRUE(sender.AwaitAck(1));
  }

  const std::vector<json> changes = log.Changes();
  ASSERT_EQ(changes.size(), 2u);
  EXPECT_EQ(changes[0]["action"], "session");
  EXPECT_EQ(changes[1]["action"], "apply");
}

TEST(ChangeTest, EveryRunThatIsRemovedHasALine) {
  TestServer server;
  for (const char* run : {"r1", "r2"}) {
    Sender sender(server.ingest(), StrCat("s-", run), run);
    ASSERT_TRUE(sender.Greet());
    ASSERT_TRUE(sender.Bye());
    ASSERT_TRUE(sender.Finish().ok());
  }
  LogLines log;
  grpc::ClientContext context;
  v1::RemoveRunsRequest request;
  request.add_run_id("r1");
  request.add_run_id("r2");
  v1::RemoveRunsResponse response;
  ASSERT_TRUE(v1::Admin::NewStub(server.channel())
                  ->RemoveRuns(&context, request, &response)
                  .ok());

  const std::vector<json> changes = log.Changes();
  ASSERT_EQ(changes.size(), 2u);
  for (const json& change : changes) {
    EXPECT_EQ(change["action"], "remove");
    EXPECT_EQ(change["subject"], "named runs");
    EXPECT_EQ(change["outcome"], "ok");
  }
  EXPECT_EQ(changes[0]["run_id"], "r1");
  EXPECT_EQ(changes[1]["run_id"], "r2");
}

TEST(ChangeTest, WhatOnlyReadsLeavesNoLine) {
  TestServer server;
  LogLines log;
  (void)server.Post("/reprise.v1.Query/ListRuns", "application/json", "{}");
  (void)server.Post("/reprise.v1.Admin/RemoveRuns", "application/json",
                    R"({"keepNewest":1,"dryRun":true})");

  EXPECT_TRUE(log.Changes().empty());
}

TEST(ChangeTest, LongTextsAreCutAndTheServerHasAName) {
  LogLines log;
  LogChange({.action = "plan",
             .subject = std::string(100'000, 'x'),
             .detail = std::string(100'000, 'x')});

  const auto change = log.OnlyChange();
  EXPECT_EQ(change["who"], "server");
  EXPECT_EQ(change["subject"].get<std::string>().size(), 256u);
  EXPECT_EQ(change["detail"].get<std::string>().size(), 512u);
}

// ---- Who is at the other end ----

TEST(PeerTest, TheOwnerOfALoopbackSocketIsFoundByItsPort) {
  TestServer server;
  const std::string address = server.daemon().http_address();
  const int fd = ConnectTo(address);
  sockaddr_in own{};
  socklen_t size = sizeof(own);
  ASSERT_EQ(::getsockname(fd, reinterpret_cast<sockaddr*>(&own), &size), 0);
  const std::string peer = StrCat("ipv4:127.0.0.1:", ntohs(own.sin_port));
  const auto port =
      static_cast<uint16_t>(std::stoi(address.substr(address.rfind(':') + 1)));

  EXPECT_EQ(PeerOf(fd), StrCat("ipv4:", address));
  EXPECT_EQ(OwnerOf(peer, {port}), ::getuid());
  // Somebody who is connected to another port is somebody else.
  EXPECT_EQ(OwnerOf(peer, {static_cast<uint16_t>(port ^ 1)}), std::nullopt);
  EXPECT_EQ(OwnerOf("ipv4:127.0.0.1:1", {port}), std::nullopt);
  for (const char* text : {"", "ipv4:", "ipv4:x:1", "ipv6:[::1:1", "unix:/x"}) {
    EXPECT_EQ(OwnerOf(text, {port}), std::nullopt) << text;
  }
  ::close(fd);
}

TEST(PeerTest, WhoIsNotKnownIsTheTokensHolder) {
  const IdentifyCaller identify = MakeIdentify(
      {7070}, [](const std::string& name) -> std::optional<Caller> {
        if (name != "00042") return std::nullopt;
        return Caller{.who = "certificate CN=node7", .peer = "10.0.0.7:5"};
      });

  EXPECT_EQ(identify("ipv4:10.0.0.7:5", {}).who, "token");
  EXPECT_EQ(identify("ipv4:10.0.0.7:5", {}).peer, "10.0.0.7:5");
  EXPECT_EQ(identify("unix-abstract:00042", {}).who, "certificate CN=node7");
  EXPECT_EQ(identify("unix-abstract:00043", {}).who, "token");
  EXPECT_EQ(identify("inproc", {}).who, "server");
  EXPECT_EQ(identify("ipv4:10.0.0.7:5", {.name = "alice"}).who, "alice");
  EXPECT_EQ(identify("inproc:uid 7, pid 9", {}).who, "uid 7");
  EXPECT_EQ(identify("inproc:uid 7, pid 9", {}).peer, "agent socket, pid 9");
}

}  // namespace
}  // namespace reprise::server
