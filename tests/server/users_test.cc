// SPDX-License-Identifier: Apache-2.0
//
// Several users on one server: what each may do with the runs of the others.
#include "tests/server/users.h"

#include <gmock/gmock.h>

#include "tests/server/log_lines.h"

namespace reprise::server {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

// ---- Every call, on alice's run ----

enum class May { kYes, kNotFound, kDenied };

struct Attempt {
  const char* call;
  const char* body;
  // What a sender of another name and a viewer get. Alice and admins may do all
  // of it, and bob nothing.
  May sender;
  May viewer;
};

constexpr May kYes = May::kYes;
constexpr May kNotFound = May::kNotFound;
constexpr May kDenied = May::kDenied;

constexpr Attempt kAttempts[] = {
    {"Query/GetRun", R"({"runId":"run-alice"})", kDenied, kYes},
    {"Query/GetRun", R"({"runId":"run-a"})", kDenied, kYes},
    {"Query/WatchRun", R"({"runId":"run-alice"})", kDenied, kYes},
    {"Query/GetSteps", R"({"runId":"run-alice"})", kDenied, kYes},
    {"Query/GetTimeline", R"({"runId":"run-alice"})", kDenied, kYes},
    {"Query/GetMoments", R"({"runId":"run-alice"})", kDenied, kYes},
    {"Query/Compare", R"({"a":"run-alice","b":"run-alice"})", kDenied, kYes},
    {"Query/Compare", R"({"a":"$plan","b":"run-alice"})", kDenied, kYes},
    {"Planner/GetGraph", R"({"graphId":"$graph"})", kDenied, kYes},
    {"Planner/GetPlan", R"({"planId":"$plan"})", kDenied, kYes},
    {"Planner/Explain", R"({"planId":"$plan"})", kDenied, kYes},
    {"Planner/Verify", R"({"planId":"$plan"})", kDenied, kYes},
    {"Planner/Sweep", R"({"graphId":"$graph","points":2})", kDenied, kYes},
    {"Planner/Plan", R"({"graphId":"$graph","budget":"0.8x"})", kNotFound,
     kDenied},
    {"Planner/Plan",
     R"({"runId":"run-alice","replaces":"$plan","moreBytes":"1"})", kNotFound,
     kDenied},
    {"Control/StartWindow", R"({"runId":"run-alice","steps":1})", kDenied,
     kDenied},
    {"Control/ApplyBudget", R"({"runId":"run-alice","budget":"0.8x"})", kDenied,
     kDenied},
    {"Control/ReportEnd", R"({"runId":"run-alice","end":{"exitCode":0}})",
     kNotFound, kDenied},
    {"Forward/SetRunGraph", R"({"runId":"run-alice","graphId":"$graph"})",
     kNotFound, kDenied},
    {"Admin/RemoveRuns", R"({"runId":["run-alice"],"dryRun":true})", kDenied,
     kDenied},
};

TEST_F(UsersTest, NobodySeesReplansOrDeletesTheRunsOfOthersUnlessAllowed) {
  int tried = 0;
  for (const Attempt& attempt : kAttempts) {
    const auto expect = [&](const char* who, May may) {
      const Answer answer = Post(who, attempt.call, attempt.body);
      const bool hidden = answer.status == 404;
      const bool denied = answer.status == 403 || answer.status == 401;
      EXPECT_EQ(hidden, may == May::kNotFound)
          << who << " " << attempt.call << attempt.body << answer.text;
      EXPECT_EQ(denied, may == May::kDenied)
          << who << " " << attempt.call << attempt.body << answer.text;
      ++tried;
    };
    expect("bob", May::kNotFound);
    expect("gate/bob", May::kNotFound);
    expect("node", attempt.sender);
    expect("look", attempt.viewer);
    expect("alice", May::kYes);
    expect("gate/alice", May::kYes);
    expect("boss", May::kYes);
    expect("root", May::kYes);
  }
  EXPECT_GE(tried, 40);
}

TEST_F(UsersTest, ARunOfAnotherIsAnsweredInTheWordsOfOneThatDoesNotExist) {
  for (const char* call : {"Query/GetRun", "Query/GetSteps", "Query/WatchRun",
                           "Query/ReadStep", "Query/GetMemory"}) {
    std::string others = Post("bob", call, R"({"runId":"run-alice"})").text;
    const std::string none = Post("bob", call, R"({"runId":"run-nobod"})").text;
    const size_t at = others.find("run-alice");
    ASSERT_NE(at, std::string::npos) << call << others;
    EXPECT_EQ(others.replace(at, 9, "run-nobod"), none);
  }
}

TEST_F(UsersTest, BeginningsAndLatestStandForOnesOwnRuns) {
  for (const char* text : {"latest", "run-"}) {
    const std::string body = StrCat(R"({"runId":")", text, "\"}");
    EXPECT_THAT(Post("alice", "Query/GetRun", body).text,
                HasSubstr(R"("runId":"run-alice")"));
    EXPECT_THAT(Post("bob", "Query/GetRun", body).text,
                HasSubstr(R"("runId":"run-bob")"));
  }
  EXPECT_EQ(Post("look", "Query/GetRun", R"({"runId":"run-"})").status, 400);
  // Nor does he get hers in the spelling that the server uses within itself.
  EXPECT_EQ(
      Post("bob", "Query/GetRun", R"({"runId":"=alice/run-alice"})").status,
      404);
}

TEST_F(UsersTest, AListHasAndCountsOnesOwnRuns) {
  const std::string alices =
      Post("alice", "Query/ListRuns", R"({"owner":"bob"})").text;
  EXPECT_THAT(alices,
              AllOf(HasSubstr("run-alice"), HasSubstr(R"("total":1)"),
                    HasSubstr(R"("owner":"alice")"), HasSubstr(R"("owners":1)"),
                    Not(HasSubstr("run-bob"))));
  EXPECT_THAT(Post("look", "Query/ListRuns", "{}").text,
              AllOf(HasSubstr("run-alice"), HasSubstr("run-bob"),
                    HasSubstr(R"("owners":2)")));
  EXPECT_THAT(Post("boss", "Query/ListRuns", R"({"mine":true})").text,
              Not(HasSubstr("run-")));
  EXPECT_THAT(Post("boss", "Query/ListRuns", R"({"owner":"bob"})").text,
              AllOf(HasSubstr("run-bob"), Not(HasSubstr("run-alice"))));
}

TEST_F(UsersTest, TheLogSaysWhoAskedForTheRunOfAnother) {
  LogLines log;
  Post("bob", "Control/ApplyBudget", R"({"runId":"run-a","budget":"1GiB"})");

  const auto change = log.OnlyChange();
  EXPECT_EQ(change["who"], "bob");
  // As he wrote it: its id is not completed for him.
  EXPECT_EQ(change["run_id"], "run-a");
  EXPECT_EQ(change["outcome"], "not_found");
}

TEST_F(UsersTest, StatusAndMetricsTellUsersNothingOfOthers) {
  const std::string status = Post("bob", "Query/GetStatus", "{}").text;
  EXPECT_THAT(status, AllOf(HasSubstr("\"version\""), Not(HasSubstr("dataDir")),
                            Not(HasSubstr("runs"))));
  EXPECT_EQ(Ask("GET /metrics", Header("bob")).status, 403);
  EXPECT_EQ(Ask("GET /metrics", Header("look")).status, 200);
}

TEST_F(UsersTest, AnOwnerAndAnAdminRemoveARunAndNobodyElseDoes) {
  for (auto& [user, sender] : senders_) {
    ASSERT_TRUE(sender->Bye());
    sender->Finish();
  }
  const char* all = R"({"keepNewest":0})";

  EXPECT_EQ(
      Post("bob", "Admin/RemoveRuns", R"({"runId":["run-alice"]})").status,
      404);
  EXPECT_EQ(Post("look", "Admin/RemoveRuns", all).status, 403);
  const Answer bobs = Post("bob", "Admin/RemoveRuns", all);
  EXPECT_THAT(bobs.text,
              AllOf(HasSubstr("run-bob"), Not(HasSubstr("run-alice"))));
  EXPECT_EQ(Post("alice", "Query/GetRun", R"({"runId":"run-alice"})").status,
            200);
  EXPECT_THAT(Post("boss", "Admin/RemoveRuns", all).text,
              HasSubstr("run-alice"));
}

}  // namespace
}  // namespace reprise::server
