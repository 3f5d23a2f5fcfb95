// SPDX-License-Identifier: Apache-2.0
//
// Several users on one server: who somebody is, and whose is what they send.
#include <gmock/gmock.h>

#include <chrono>

#include "formats/convert/graph_json.h"
#include "server/net/tokens.h"
#include "tests/server/users.h"

namespace reprise::server {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

// ---- Sending ----

TEST_F(UsersTest, NobodyTakesTheRunOrTheSessionOfAnother) {
  const grpc::Status run = Greet("bob", "s-new", "run-alice");
  EXPECT_EQ(run.error_code(), grpc::StatusCode::ALREADY_EXISTS);
  const grpc::Status session = Greet("bob", "s-alice", "run-bob");
  EXPECT_EQ(session.error_code(), grpc::StatusCode::ALREADY_EXISTS);
  EXPECT_THAT(session.error_message(), Not(HasSubstr("run-alice")));
  EXPECT_EQ(Greet("look", "s-new", "run-new").error_code(),
            grpc::StatusCode::PERMISSION_DENIED);
  // Not even with a step graph of his own.
  EXPECT_EQ(Post("bob", "Forward/SetRunGraph",
                 R"({"runId":"run-alice","graphId":"$own"})")
                .status,
            409);
  EXPECT_THAT(Post("bob", "Planner/Plan",
                   R"({"runId":"run-alice","graphId":"$own","budget":"0.8x"})")
                  .text,
              HasSubstr("there is no run"));
  grpc::Status put;
  PutGraph("bob", SmallGraph(), "run-alice", "", &put);
  EXPECT_EQ(put.error_code(), grpc::StatusCode::ALREADY_EXISTS);
  EXPECT_EQ(Post("bob", "Planner/GetGraph", R"({"graphId":"$graph"})").status,
            404);

  // Her stream has noticed nothing.
  Sender& hers = *senders_["alice"];
  EXPECT_TRUE(hers.SendChunk(OpChunk(1)));
  EXPECT_TRUE(hers.AwaitAck(1));
  // Her machines send as she does, and read nothing.
  EXPECT_TRUE(Greet("alice.send", "s-rank-1", "run-alice").ok());
  EXPECT_EQ(
      Post("alice.send", "Query/GetRun", R"({"runId":"run-alice"})").status,
      403);
}

TEST_F(UsersTest, AStepGraphIsThatOfWhoeverHasSentIt) {
  // Another graph under the id of hers is not hers.
  v1::StepGraph forged = SmallGraph();
  forged.set_name("forged");
  grpc::Status put;
  PutGraph("bob", forged, "", graph_, &put);
  EXPECT_EQ(put.error_code(), grpc::StatusCode::ALREADY_EXISTS);
  EXPECT_EQ(Post("bob", "Planner/GetGraph", R"({"graphId":"$graph"})").status,
            404);

  // The same step as measured on another machine is the same graph.
  v1::StepGraph measured = SmallGraph();
  measured.mutable_ops(0)->set_time_ns(123'456);
  PutGraph("bob", measured, "", graph_, &put);
  EXPECT_EQ(put.error_code(), grpc::StatusCode::ALREADY_EXISTS);
  EXPECT_EQ(Post("bob", "Planner/GetGraph", R"({"graphId":"$graph"})").status,
            200);

  // It outlives her run.
  ASSERT_TRUE(senders_["alice"]->Bye());
  senders_["alice"]->Finish();
  const Answer gone =
      Post("alice", "Admin/RemoveRuns", R"({"runId":["run-alice"]})");
  EXPECT_EQ(gone.status, 200) << gone.text;
  EXPECT_EQ(Post("bob", "Planner/GetGraph", R"({"graphId":"$graph"})").status,
            200);
}

TEST_F(UsersTest, APlanThatFailedInAnothersRunDoesNotSayInWhich) {
  v1::Columns columns;
  v1::VerifyReport& check = *columns.add_checks();
  check.set_step(4);
  check.set_plan_id(plan_);
  check.set_failed(true);
  ASSERT_TRUE(senders_["alice"]->SendChunk(MakeChunk(1, columns, 1)));
  ASSERT_TRUE(senders_["alice"]->AwaitAck(1));
  // The same step, and so the same plan.
  PutGraph("bob", SmallGraph(), "run-bob", "");
  const std::string end = R"(","graphId":"$graph","budget":"0.9x"})";

  EXPECT_THAT(Post("bob", "Planner/Plan", R"({"runId":"run-bob)" + end).text,
              AllOf(HasSubstr("is withdrawn: a step of another user's run"),
                    Not(HasSubstr("run-alice"))));
  EXPECT_THAT(
      Post("alice", "Planner/Plan", R"({"runId":"run-alice)" + end).text,
      HasSubstr("is withdrawn: step 4 of run run-alice"));
}

TEST_F(UsersTest, AnImportedFileIsARunOfWhoSentIt) {
  const std::string file = formats::WriteGraphText(SmallGraph());
  const std::string headers = "Content-Type: application/octet-stream\r\n";
  EXPECT_EQ(
      Ask("POST /import?name=g.json", headers + Header("look"), file).status,
      403);
  const std::string sent =
      Ask("POST /import?name=g.json", headers + Header("alice"), file).text;
  const size_t at = sent.find("\"runId\":\"");
  ASSERT_NE(at, std::string::npos) << sent;
  const std::string run = sent.substr(at + 9, 36);
  const std::string body = StrCat(R"({"runId":")", run, "\"}");

  EXPECT_THAT(Post("alice", "Query/GetRun", body).text,
              HasSubstr(R"("owner":"alice")"));
  EXPECT_EQ(Post("bob", "Query/GetRun", body).status, 404);
}

// ---- Who somebody is ----

TEST_F(UsersTest, OnlyAProxySaysWhoSomebodyIs) {
  const char* body = R"({"runId":"run-alice"})";
  const std::string forwarded = "X-Forwarded-User: alice\r\n";
  const auto get = [&](const std::string& headers) {
    return Ask("POST /reprise.v1.Query/GetRun",
               "Content-Type: application/json\r\n" + headers, body)
        .status;
  };
  EXPECT_EQ(get(Header("gate") + forwarded), 200);
  EXPECT_EQ(get(Header("bob") + forwarded), 404);
  EXPECT_EQ(get(Header("node") + forwarded), 403);
  EXPECT_EQ(get(forwarded), 401);
  EXPECT_EQ(get(Header("gate")), 401);
  EXPECT_EQ(get(Header("gate") + forwarded + "X-Forwarded-User: bob\r\n"), 401);
  for (const std::string& name :
       {std::string(), std::string("server"), std::string("token"),
        std::string("uid 0"), std::string("al\tice"), std::string("al\x7fice"),
        std::string(129, 'a')}) {
    EXPECT_THAT(get(Header("gate") + "X-Forwarded-User: " + name + "\r\n"),
                AnyOf(401, 400, 0))
        << name;
  }
  // A user of a name that is an admin's is a user.
  EXPECT_EQ(get(Header("gate") + "X-Forwarded-User: boss\r\n"), 404);
}

TEST_F(UsersTest, TheRoleIsThatOfTheCallAndNotOfTheConnection) {
  const auto channel = ChannelTo(server_.daemon().grpc_address(), "");
  const auto query = v1::Query::NewStub(channel);
  const auto get = [&](const std::string& who, const std::string& more = "") {
    grpc::ClientContext context;
    context.AddMetadata("authorization", "Bearer " + TokenOf(who));
    // What only the server may say of itself, and a proxy of a user.
    context.AddMetadata("reprise-job", "uid 0, pid 1");
    if (!more.empty()) context.AddMetadata("x-forwarded-user", more);
    v1::GetRunRequest request;
    request.set_run_id("run-alice");
    v1::Run run;
    return query->GetRun(&context, request, &run).error_code();
  };
  EXPECT_EQ(get("boss"), grpc::StatusCode::OK);
  EXPECT_EQ(get("bob"), grpc::StatusCode::NOT_FOUND);
  EXPECT_EQ(get("bob", "alice"), grpc::StatusCode::NOT_FOUND);
  EXPECT_EQ(get("gate", "alice"), grpc::StatusCode::OK);
  EXPECT_EQ(get("gate", "bob"), grpc::StatusCode::NOT_FOUND);
  EXPECT_EQ(get("gate"), grpc::StatusCode::UNAUTHENTICATED);
  EXPECT_EQ(get("alice"), grpc::StatusCode::OK);
}

TEST_F(UsersTest, AStreamOfAnothersRunEndsAtOnce) {
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() +
                       std::chrono::seconds(30));
  v1::WatchRunRequest request;
  request.set_run_id("run-alice");
  const auto stream = Stub<v1::Query>("bob").WatchRun(&context, request);
  v1::RunEvent event;
  EXPECT_FALSE(stream->Read(&event));
  EXPECT_EQ(stream->Finish().error_code(), grpc::StatusCode::NOT_FOUND);

  grpc::ClientContext apply_context;
  const auto control = v1::Control::NewStub(
      ChannelTo(server_.daemon().grpc_address(), TokenOf("look")));
  const auto events = control->ApplyBudget(&apply_context, {});
  v1::PlanEvent plan;
  EXPECT_FALSE(events->Read(&plan));
  EXPECT_EQ(events->Finish().error_code(), grpc::StatusCode::PERMISSION_DENIED);
}

TEST_F(UsersTest, TheLinkThatWasOpenedLastSaysWhoABrowserIs) {
  const auto cookie = [&](const std::string& who) {
    const std::string text = Ask(StrCat("GET /?token=", TokenOf(who)), "").text;
    const size_t at = text.find("Set-Cookie: ");
    if (at == std::string::npos) return std::string();
    return text.substr(at + 12, text.find(';', at) - at - 12);
  };
  const std::string alice = cookie("alice");
  const std::string bob = cookie("bob");
  EXPECT_EQ(alice.substr(0, alice.find('=')), bob.substr(0, bob.find('=')));
  // What only sends, or speaks for others, opens no page.
  EXPECT_EQ(cookie("node"), "");
  EXPECT_EQ(cookie("gate"), "");

  const auto get = [&](const std::string& headers) {
    return Ask("POST /reprise.v1.Query/GetRun",
               "Content-Type: application/json\r\n" + headers,
               R"({"runId":"run-alice"})")
        .status;
  };
  EXPECT_EQ(get(StrCat("Cookie: ", alice, "\r\n")), 200);
  EXPECT_EQ(get(StrCat("Cookie: ", bob, "\r\n")), 404);
  // A proxy's user is not who the browser was before.
  EXPECT_EQ(get(StrCat(Header("gate/bob"), "Cookie: ", alice, "\r\n")), 404);
}

// ---- The file ----

TEST(TokensTest, AFileThatCannotBeMeantIsRefusedWithItsLineAndNoToken) {
  const TemporaryFolder folder;
  const std::string path = folder.path() + "/tokens";
  const std::string a(32, 'a');
  const std::string b(32, 'b');
  const std::pair<std::string, std::string> files[] = {
      {a + "\n" + b + "\n", "line 2: is the second token without a name"},
      {"root admin " + a + "\nx user " + a + "\n",
       "line 2: has the token of a line above"},
      {"root admin " + a + "\nroot admin " + b + "\n",
       "line 2: root has this role in a line above"},
      {"root admin " + a + "\n\n# x\nx boss " + b + "\n",
       "line 4: the role must be send, user, viewer, admin or proxy"},
      {"root admin " + a + "\nx user\n", "line 2: must be a token, or NAME"},
      {"root admin " + a + " more\n", "line 1: must be a token, or NAME"},
      {"root admin short\n", "line 1: a token is 16 to 512"},
      {std::string("ro\0ot admin ", 12) + a + "\n", "line 1: a name is"},
      {"ro\x1b[2Jot admin " + a + "\n", "line 1: a name is"},
      {"server admin " + a + "\n", "line 1: a name is"},
      {"\"\" admin " + a + "\n", "line 1: a name is"},
      {std::string(129, 'n') + " admin " + a + "\n", "line 1: a name is"},
      {"x user " + a + "\n", "gives nobody the role admin"},
      {"# nothing\n", "a token is 16 to 512"},
      {std::string(1 << 20, 'a'), "is larger than 65536 bytes"},
  };
  for (const auto& [text, said] : files) {
    std::ofstream(path, std::ios::binary) << text;
    ::chmod(path.c_str(), 0600);
    const Status status = Tokens::Read(path).status();
    EXPECT_EQ(status.code(), Code::kInvalidArgument) << said;
    EXPECT_THAT(status.message(), AllOf(StartsWith(path), HasSubstr(said),
                                        Not(HasSubstr(a)), Not(HasSubstr(b))));
  }
}

TEST(TokensTest, OneTokenAloneIsAnAdminsAsBefore) {
  const TemporaryFolder folder;
  const std::string path = folder.path() + "/token";
  std::ofstream(path) << std::string(32, 'a') << "\r\n";
  ::chmod(path.c_str(), 0600);
  const auto tokens = Tokens::Read(path);
  ASSERT_TRUE(tokens.ok()) << tokens.status().message();
  const std::string bearer = "bearer " + std::string(32, 'a');
  const auto access = tokens->Find(
      {.authorization = bearer, .cookies = "", .forwarded_users = {"bob"}});
  ASSERT_TRUE(access.ok());
  EXPECT_EQ(access->role, Role::kAdmin);
  EXPECT_EQ(access->name, "");
}

}  // namespace
}  // namespace reprise::server
