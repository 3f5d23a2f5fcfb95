// SPDX-License-Identifier: Apache-2.0
//
// Who did what: kept for every call that plans or changes something, with the
// user the kernel knows.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/str_cat.h"
#include "reprise/v1/admin.grpc.pb.h"
#include "server/net/address.h"
#include "server/store/audit_rows.h"
#include "tests/server/server_harness.h"

namespace reprise::server {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

std::vector<v1::AuditEntry> ReadAudit(TestServer& server,
                                      const std::string& run_id = "") {
  grpc::ClientContext context;
  v1::ReadAuditRequest request;
  request.set_run_id(run_id);
  v1::ReadAuditResponse response;
  const grpc::Status status = v1::Admin::NewStub(server.channel())
                                  ->ReadAudit(&context, request, &response);
  EXPECT_TRUE(status.ok()) << status.error_message();
  return {response.entries().begin(), response.entries().end()};
}

std::string Me() { return StrCat("uid ", ::getuid()); }

TEST(AuditTest, APlanIsKeptWithTheUserWhoAskedOverGrpc) {
  TestServer server;
  v1::PlanRequest request =
      RequestFor(server.PutGraph(SmallGraph(), "r1"), "0.9x");
  request.set_run_id("r1");

  const v1::Plan plan = server.Plan(request);

  const auto entries = ReadAudit(server, "r1");
  ASSERT_EQ(entries.size(), 2u);
  EXPECT_EQ(entries[0].action(), "plan");
  EXPECT_EQ(entries[0].who(), Me());
  EXPECT_THAT(entries[0].peer(), StartsWith("127.0.0.1:"));
  EXPECT_EQ(entries[0].run_id(), "r1");
  EXPECT_EQ(entries[0].subject(), "plan " + plan.plan_id());
  EXPECT_EQ(entries[0].outcome(), "ok");
  EXPECT_EQ(entries[0].detail(), plan.sentence());
  EXPECT_GT(entries[0].at_ns(), 0);
}

TEST(AuditTest, AStepGraphIsKeptWithTheUserWhoSentIt) {
  TestServer server;
  const std::string graph_id = server.PutGraph(SmallGraph(), "r1");

  const auto entries = ReadAudit(server, "r1");
  ASSERT_EQ(entries.size(), 1u);
  EXPECT_EQ(entries[0].action(), "graph");
  EXPECT_EQ(entries[0].who(), Me());
  EXPECT_THAT(entries[0].peer(), StartsWith("127.0.0.1:"));
  EXPECT_EQ(entries[0].subject(), "graph " + graph_id);
  EXPECT_EQ(entries[0].outcome(), "ok");
}

TEST(AuditTest, AStepGraphThatIsRefusedIsKeptWithTheReason) {
  TestServer server;
  grpc::ClientContext context;
  v1::GraphRef ref;
  const auto writer = server.planner().PutGraph(&context, &ref);
  v1::GraphPart part;
  part.set_run_id("r1");
  part.set_data("no step graph");
  writer->Write(part);
  writer->WritesDone();
  ASSERT_FALSE(writer->Finish().ok());

  const auto entries = ReadAudit(server);
  ASSERT_EQ(entries.size(), 1u);
  EXPECT_EQ(entries[0].action(), "graph");
  EXPECT_EQ(entries[0].run_id(), "r1");
  EXPECT_EQ(entries[0].outcome(), "invalid_argument");
  EXPECT_NE(entries[0].detail(), "");
}

TEST(AuditTest, WhatFailedIsKeptWithItsErrorAndTheUserWhoAskedOverHttp) {
  TestServer server;

  (void)server.Post("/reprise.v1.Control/StartWindow", "application/json",
                    R"({"runId":"nobody","steps":3})");

  const auto entries = ReadAudit(server);
  ASSERT_EQ(entries.size(), 1u);
  EXPECT_EQ(entries[0].action(), "window");
  EXPECT_EQ(entries[0].who(), Me());
  EXPECT_EQ(entries[0].run_id(), "nobody");
  EXPECT_EQ(entries[0].outcome(), "not_found");
  EXPECT_THAT(entries[0].detail(), HasSubstr("there is no run \"nobody\""));
}

TEST(AuditTest, AJobsPlanIsAppliedInTheNameOfWhoOpenedItsSession) {
  TestServer server;
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

  // Newest first. That the job has no plan is nothing that was done to it.
  const auto entries = ReadAudit(server, "r1");
  ASSERT_EQ(entries.size(), 4u);
  EXPECT_EQ(entries[0].outcome(), "refused");
  EXPECT_EQ(entries[0].detail(), "an op does not match");
  EXPECT_EQ(entries[1].action(), "apply");
  EXPECT_EQ(entries[1].subject(), "plan 00000000000000aa");
  EXPECT_EQ(entries[2].action(), "withdraw");
  EXPECT_EQ(entries[3].action(), "session");
  for (const v1::AuditEntry& entry : entries) EXPECT_EQ(entry.who(), Me());
}

TEST(AuditTest, EveryRunThatIsRemovedHasAnEntryThatOutlivesIt) {
  TestServer server;
  for (const char* run : {"r1", "r2"}) {
    Sender sender(server.ingest(), StrCat("s-", run), run);
    ASSERT_TRUE(sender.Greet());
    ASSERT_TRUE(sender.Bye());
    ASSERT_TRUE(sender.Finish().ok());
  }
  grpc::ClientContext context;
  v1::RemoveRunsRequest request;
  request.add_run_id("r1");
  request.add_run_id("r2");
  v1::RemoveRunsResponse response;
  ASSERT_TRUE(v1::Admin::NewStub(server.channel())
                  ->RemoveRuns(&context, request, &response)
                  .ok());

  for (const char* run : {"r1", "r2"}) {
    const auto entries = ReadAudit(server, run);
    ASSERT_EQ(entries.size(), 2u) << run;
    EXPECT_EQ(entries[0].action(), "remove");
    EXPECT_EQ(entries[0].outcome(), "ok");
    EXPECT_EQ(entries[1].action(), "session");
  }
}

TEST(AuditTest, WhatOnlyReadsLeavesNoEntry) {
  TestServer server;
  (void)server.Post("/reprise.v1.Query/ListRuns", "application/json", "{}");
  (void)server.Post("/reprise.v1.Admin/RemoveRuns", "application/json",
                    R"({"keepNewest":1,"dryRun":true})");

  EXPECT_TRUE(ReadAudit(server).empty());
}

TEST(AuditTest, IsNotReadWithoutTheToken) {
  TestServer server;

  EXPECT_THAT(
      server.HttpWithoutToken("POST /reprise.v1.Admin/ReadAudit HTTP/1.1\r\n"
                              "Host: localhost\r\nConnection: close\r\n"
                              "Content-Type: application/json\r\n"
                              "Content-Length: 2\r\n\r\n{}"),
      StartsWith("HTTP/1.1 401"));
}

TEST(AuditTest, KeepsTheNewestAndCutsLongTexts) {
  const TemporaryFolder folder;
  const auto store = Store::Open({.path = folder.path() + "/reprise.db"});
  ASSERT_TRUE(store.ok());
  v1::AuditEntry entry;
  entry.set_who("server");
  entry.set_action("plan");
  entry.set_detail(std::string(100'000, 'x'));
  std::vector<v1::AuditEntry> left;

  ASSERT_TRUE((*store)
                  ->Write([&](Database& db) -> Status {
                    for (int i = 0; i < 5; ++i) {
                      entry.set_subject(std::to_string(i));
                      RETURN_IF_ERROR(InsertAudit(db, entry, /*kept=*/3));
                    }
                    ASSIGN_OR_RETURN(left, LoadAudit(db, "", 100));
                    return OkStatus();
                  })
                  .ok());

  ASSERT_EQ(left.size(), 3u);
  EXPECT_EQ(left[0].subject(), "4");
  EXPECT_EQ(left[2].subject(), "2");
  EXPECT_EQ(left[0].detail().size(), 512u);
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

  EXPECT_EQ(identify("ipv4:10.0.0.7:5").who, "token");
  EXPECT_EQ(identify("ipv4:10.0.0.7:5").peer, "10.0.0.7:5");
  EXPECT_EQ(identify("unix-abstract:00042").who, "certificate CN=node7");
  EXPECT_EQ(identify("unix-abstract:00043").who, "token");
  EXPECT_EQ(identify("inproc").who, "server");
  EXPECT_EQ(identify("inproc:uid 7, pid 9").who, "uid 7");
  EXPECT_EQ(identify("inproc:uid 7, pid 9").peer, "agent socket, pid 9");
}

}  // namespace
}  // namespace reprise::server
