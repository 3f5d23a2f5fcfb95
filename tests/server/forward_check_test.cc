// SPDX-License-Identifier: Apache-2.0
//
// What a central daemon refuses, and what is said of flags that cannot work.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "reprise/v1/forward.grpc.pb.h"
#include "server/forward/central_channel.h"
#include "tests/server/server_harness.h"

namespace reprise::server {
namespace {

using ::testing::HasSubstr;

// ---- Plans from outside ----

class PutPlanTest : public ::testing::Test {
 protected:
  PutPlanTest() {
    request_.set_run_id("r1");
    *request_.mutable_request() =
        RequestFor(centre_.PutGraph(SmallGraph(), ""), "17408");
    *request_.mutable_plan() = centre_.Plan(request_.request());
    // As if another daemon had made it.
    other_.PutGraph(SmallGraph(), "");
  }

  grpc::Status Put(TestServer& server) {
    const auto forward = v1::Forward::NewStub(server.channel());
    grpc::ClientContext context;
    v1::PutPlanResponse response;
    return forward->PutPlan(&context, request_, &response);
  }

  TestServer centre_;
  TestServer other_;
  v1::PutPlanRequest request_;
};

TEST_F(PutPlanTest, APlanOfAnotherDaemonIsStoredOnce) {
  request_.set_newest(true);
  ASSERT_TRUE(Put(other_).ok());
  ASSERT_TRUE(Put(other_).ok());
  EXPECT_EQ(other_.CountRows("SELECT count(*) FROM plans"), 1);
  EXPECT_EQ(other_.GetRun("r1").plan_id(), request_.plan().plan_id());
}

TEST_F(PutPlanTest, APlanThatNeedsMoreThanItSaysIsRefused) {
  request_.mutable_plan()->set_peak_bytes(1);
  const grpc::Status status = Put(other_);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(status.error_message(), HasSubstr("bytes and says 1"));
  EXPECT_EQ(other_.CountRows("SELECT count(*) FROM plans"), 0);
}

TEST_F(PutPlanTest, APlanUnderAnotherPlansIdIsRefused) {
  request_.mutable_plan()->set_plan_id("00000000000000aa");
  EXPECT_THAT(Put(other_).error_message(),
              HasSubstr("its id is not that of its content"));
  request_.mutable_plan()->set_plan_id("../etc/passwd");
  EXPECT_EQ(Put(other_).error_code(), grpc::StatusCode::INVALID_ARGUMENT);
}

TEST_F(PutPlanTest, APlanOfAGraphThatIsNotThereIsNotFound) {
  request_.mutable_plan()->set_graph_id("00000000000000aa");
  EXPECT_EQ(Put(other_).error_code(), grpc::StatusCode::NOT_FOUND);
}

TEST_F(PutPlanTest, AScheduleBeyondItsGraphIsRefused) {
  request_.mutable_plan()->add_schedule(1'000'000);
  EXPECT_EQ(Put(other_).error_code(), grpc::StatusCode::INVALID_ARGUMENT);
}

TEST_F(PutPlanTest, WithoutTheTokenNothingIsStored) {
  const auto stranger =
      v1::Forward::NewStub(ChannelTo(other_.daemon().grpc_address(), ""));
  grpc::ClientContext context;
  v1::PutPlanResponse response;
  EXPECT_EQ(stranger->PutPlan(&context, request_, &response).error_code(),
            grpc::StatusCode::UNAUTHENTICATED);
  EXPECT_EQ(other_.CountRows("SELECT count(*) FROM plans"), 0);
}

// ---- Flags ----

ForwardOptions To(const std::string& target, const std::string& token_file,
                  const std::string& ca = "",
                  const std::string& certificate = "") {
  ForwardOptions options;
  options.target = target;
  options.token_file = token_file;
  options.ca = ca;
  options.certificate = certificate;
  return options;
}

std::string Said(const ForwardOptions& options) {
  return CheckForwardOptions(options).message();
}

TEST(ForwardOptionsTest, BeyondThisMachineNothingGoesInPlainText) {
  for (const char* target :
       {"10.0.0.1:7070", "central:7070", "0.0.0.0:7070", "[fe80::1]:7070"}) {
    EXPECT_THAT(Said(To(target, "t")), HasSubstr("needs --forward-ca"))
        << target;
  }
  EXPECT_EQ(Said(To("127.0.0.1:7070", "t")), "");
  EXPECT_EQ(Said(To("central:7070", "t", "ca")), "");
}

TEST(ForwardOptionsTest, EachThatCannotWorkHasASentence) {
  EXPECT_THAT(Said(To("central", "t")), HasSubstr("write HOST:PORT"));
  EXPECT_THAT(Said(To("central:", "t")), HasSubstr("write HOST:PORT"));
  EXPECT_THAT(Said(To("https://central:7070", "t")),
              HasSubstr("write HOST:PORT"));
  EXPECT_THAT(Said(To("central:7070", "", "ca")),
              HasSubstr("--forward-token-file"));
  EXPECT_THAT(Said(To("central:7070", "t", "ca", "cert")),
              HasSubstr("belong together"));
  EXPECT_THAT(Said(To("", "", "ca")), HasSubstr("--forward-to HOST:PORT"));
}

TEST(ForwardOptionsTest, AFileThatCannotBeUsedIsNamed) {
  const TemporaryFolder folder;
  const std::string nothing = folder.path() + "/nothing";
  const std::string text = folder.path() + "/text";
  std::ofstream(text) << "word\n";
  const auto said = [](const ForwardOptions& options) {
    return ChannelToCentral(options).status().message();
  };
  EXPECT_THAT(said(To("127.0.0.1:1", nothing)),
              HasSubstr("--forward-token-file: " + nothing));
  EXPECT_THAT(said(To("c:1", text, text)), HasSubstr("--forward-ca: " + text));
  EXPECT_EQ(said(To("127.0.0.1:1", text)), "");
}

}  // namespace
}  // namespace reprise::server
