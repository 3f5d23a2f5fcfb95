// SPDX-License-Identifier: Apache-2.0
//
// The quota of a run: what is beyond it is counted and not stored, and the job
// goes on.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "server/store/quota_rows.h"
#include "tests/server/server_harness.h"

namespace reprise::server {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kQuota = 64 << 10;

DaemonOptions WithQuota() {
  DaemonOptions options = TestServer::DefaultOptions();
  options.max_run_bytes = kQuota;
  return options;
}

TEST(QuotaTest, RecordsBeyondItAreCountedAndTheSenderGoesOn) {
  TestServer server(WithQuota());
  Sender sender(server.ingest(), "s1", "r1");
  ASSERT_TRUE(sender.Greet());
  constexpr uint64_t kChunks = 40;
  for (uint64_t seq = 1; seq <= kChunks; ++seq) {
    ASSERT_TRUE(sender.SendChunk(OpChunk(seq, 1000)));
  }
  ASSERT_TRUE(sender.AwaitAck(kChunks));

  const v1::Run run = server.GetRun("r1");
  const int64_t chunks = server.CountRows("SELECT count(*) FROM chunks");
  EXPECT_EQ(run.stored().quota_bytes(), kQuota);
  EXPECT_LE(run.stored().bytes(), kQuota);
  EXPECT_EQ(run.stored().bytes(),
            server.CountRows("SELECT CAST(sum(length(body)) AS BIGINT)"
                             " FROM chunks"));
  EXPECT_GT(chunks, 0);
  EXPECT_LT(chunks, static_cast<int64_t>(kChunks));
  // Nothing is without a trace: stored and refused are all that was sent.
  EXPECT_EQ(run.records() + run.stored().refused_records(), kChunks * 1000);
  EXPECT_EQ(run.lost_chunks() + static_cast<uint64_t>(chunks), kChunks);
  // A flood of refused chunks has one row.
  EXPECT_EQ(server.CountRows("SELECT count(*) FROM lost"), 1);
  EXPECT_THAT(server.Http("GET /metrics HTTP/1.1\r\nHost: localhost\r\n"
                          "Connection: close\r\n\r\n"),
              HasSubstr("reprise_quota_refused_bytes_total "));
}

TEST(QuotaTest, StepsAreKeptWhereRecordsHaveNoRoomLeft) {
  TestServer server(WithQuota());
  Sender sender(server.ingest(), "s1", "r1");
  ASSERT_TRUE(sender.Greet());
  uint64_t seq = 0;
  const auto refused = [&] {
    return server.CountRows("SELECT refused_bytes FROM runs") > 0;
  };
  while (!refused()) {
    ASSERT_LT(seq, 100U) << "the quota refuses nothing";
    ASSERT_TRUE(sender.SendChunk(OpChunk(++seq, 1000)));
    ASSERT_TRUE(sender.AwaitAck(seq));
  }
  v1::StepReport step;
  step.set_step(7);

  ASSERT_TRUE(sender.SendChunk(StepChunk(++seq, {step})));
  ASSERT_TRUE(sender.AwaitAck(seq));
  EXPECT_EQ(server.GetRun("r1").steps(), 1u);

  // Not without end either.
  std::vector<v1::StepReport> many(2000, step);
  for (int i = 0; i < 20; ++i) {
    ASSERT_TRUE(sender.SendChunk(StepChunk(++seq, many)));
  }
  ASSERT_TRUE(sender.AwaitAck(seq));
  EXPECT_LE(server.GetRun("r1").stored().bytes(), kQuota);
}

TEST(QuotaTest, NamesBeyondItAreNotStored) {
  TestServer server(WithQuota());
  Sender sender(server.ingest(), "s1", "r1");
  ASSERT_TRUE(sender.Greet());
  v1::Up up;
  for (uint64_t id = 0; id < 100; ++id) {
    v1::NameDef& name = *up.mutable_defs()->add_names();
    name.set_id(id + 1);
    name.set_text(std::string(4000, 'n'));
  }
  ASSERT_TRUE(sender.Write(up));
  ASSERT_TRUE(sender.SendChunk(OpChunk(1)));
  ASSERT_TRUE(sender.AwaitAck(1));

  EXPECT_EQ(server.CountRows("SELECT count(*) FROM names"), 0);
  EXPECT_EQ(server.GetRun("r1").stored().refused_bytes(), 400'000);
}

TEST(QuotaTest, AStepGraphBeyondItIsRefusedWithTheReason) {
  DaemonOptions options = TestServer::DefaultOptions();
  options.max_run_bytes = 100;
  TestServer server(options);
  grpc::ClientContext context;
  v1::GraphRef ref;
  const auto writer = server.planner().PutGraph(&context, &ref);
  v1::GraphPart part;
  part.set_run_id("r1");
  part.set_data(SmallGraph().SerializeAsString());
  writer->Write(part);
  writer->WritesDone();
  const grpc::Status status = writer->Finish();

  EXPECT_EQ(status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_THAT(status.error_message(), HasSubstr("run r1 has used"));
  EXPECT_THAT(status.error_message(), HasSubstr("--max-run-bytes"));
  EXPECT_EQ(server.CountRows("SELECT count(*) FROM graphs"), 0);
}

TEST(QuotaTest, PlansOfARunAreCountedOnce) {
  TestServer server(WithQuota());
  v1::PlanRequest request =
      RequestFor(server.PutGraph(SmallGraph(), "r1"), "0.9x");
  request.set_run_id("r1");
  const int64_t before = server.GetRun("r1").stored().bytes();

  (void)server.Plan(request);

  const int64_t after = server.GetRun("r1").stored().bytes();
  const int64_t plan =
      server.CountRows("SELECT sum(length(body) + length(request)) FROM plans");
  EXPECT_GT(plan, 0);
  EXPECT_EQ(after, before + plan);
  // The same plan again takes no more room than its time needs.
  (void)server.Plan(request);
  EXPECT_EQ(server.GetRun("r1").stored().bytes(),
            before + server.CountRows(
                         "SELECT sum(length(body) + length(request)) FROM "
                         "plans"));
}

TEST(QuotaTest, APlanBeyondItIsRefusedWithTheReason) {
  DaemonOptions options = TestServer::DefaultOptions();
  const auto graph =
      static_cast<int64_t>(SmallGraph().SerializeAsString().size());
  options.max_run_bytes = graph + 10;
  TestServer server(options);
  v1::PlanRequest request =
      RequestFor(server.PutGraph(SmallGraph(), "r1"), "0.9x");
  request.set_run_id("r1");

  const grpc::Status status = server.PlanError(request);

  EXPECT_EQ(status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_THAT(status.error_message(), HasSubstr("no room for a plan of"));
  EXPECT_EQ(server.CountRows("SELECT count(*) FROM plans"), 0);
  EXPECT_EQ(server.GetRun("r1").plan_id(), "");
}

TEST(QuotaTest, OneRunDoesNotUseUpTheRoomOfAnother) {
  TestServer server(WithQuota());
  for (const char* run : {"r1", "r2"}) {
    Sender sender(server.ingest(), std::string("s-") + run, run);
    ASSERT_TRUE(sender.Greet());
    const uint64_t chunks = run[1] == '1' ? 40 : 1;
    for (uint64_t seq = 1; seq <= chunks; ++seq) {
      ASSERT_TRUE(sender.SendChunk(OpChunk(seq, 1000)));
    }
    ASSERT_TRUE(sender.AwaitAck(chunks));
  }

  EXPECT_GT(server.GetRun("r1").stored().refused_records(), 0u);
  EXPECT_EQ(server.GetRun("r2").stored().refused_records(), 0u);
  EXPECT_EQ(server.GetRun("r2").records(), 1000u);
}

}  // namespace
}  // namespace reprise::server
