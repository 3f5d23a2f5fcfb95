// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "server/ingest/chunk_check.h"
#include "tests/server/server_harness.h"

namespace reprise::server {
namespace {

using ::testing::HasSubstr;

constexpr char kCountChunks[] = "SELECT count(*) FROM chunks";

// ---- Delivery ----

TEST(IngestTest, AcknowledgesWhatIsStored) {
  TestServer server;
  Sender sender(server.ingest(), "s1", "r1");
  EXPECT_EQ(sender.Greet(), 0u);
  for (uint64_t seq = 1; seq <= 200; ++seq) {
    ASSERT_TRUE(sender.SendChunk(OpChunk(seq)));
  }
  ASSERT_TRUE(sender.AwaitAck(200));

  EXPECT_EQ(server.CountRows(kCountChunks), 200);
  ASSERT_TRUE(sender.Bye());
  EXPECT_TRUE(sender.Finish().ok());
  const v1::Run run = server.GetRun("r1");
  EXPECT_EQ(run.state(), v1::RUN_STATE_FINISHED);
  EXPECT_EQ(run.name(), "train");
  EXPECT_EQ(run.records(), 600u);
}

TEST(IngestTest, StoresADuplicateOnceAndAcknowledgesItAgain) {
  TestServer server;
  Sender sender(server.ingest(), "s1", "r1");
  ASSERT_TRUE(sender.Greet());
  sender.SendChunk(OpChunk(1));
  sender.SendChunk(OpChunk(1));
  sender.SendChunk(OpChunk(2));
  ASSERT_TRUE(sender.AwaitAck(2));

  EXPECT_EQ(server.CountRows(kCountChunks), 2);
  EXPECT_EQ(server.GetRun("r1").records(), 6u);
}

TEST(IngestTest, AsksOnceForWhatAHoleSwallowed) {
  TestServer server;
  Sender sender(server.ingest(), "s1", "r1");
  ASSERT_TRUE(sender.Greet());
  sender.SendChunk(OpChunk(1));
  ASSERT_TRUE(sender.AwaitAck(1));
  for (const uint64_t seq : {3, 4, 5}) sender.SendChunk(OpChunk(seq));

  const std::optional<v1::Down> down = sender.Read();
  ASSERT_TRUE(down && down->has_resend());
  EXPECT_EQ(down->resend().expected(), 2u);
  EXPECT_EQ(server.CountRows(kCountChunks), 1);

  // The next answer is an Ack: 4 and 5 caused no further Resend.
  for (const uint64_t seq : {2, 3, 4, 5}) sender.SendChunk(OpChunk(seq));
  const std::optional<v1::Down> next = sender.Read();
  ASSERT_TRUE(next && next->has_ack());
  EXPECT_TRUE(next->ack().committed() == 5 || sender.AwaitAck(5));
  EXPECT_EQ(server.CountRows(kCountChunks), 5);
}

TEST(IngestTest, GoesOnAfterChunksThatTheSenderLost) {
  TestServer server;
  Sender sender(server.ingest(), "s1", "r1");
  ASSERT_TRUE(sender.Greet());
  sender.SendChunk(OpChunk(1));
  v1::Up up;
  up.mutable_lost()->set_from(2);
  up.mutable_lost()->set_to(4);
  up.mutable_lost()->set_reason("the spool was full");
  sender.Write(up);
  sender.SendChunk(OpChunk(5));
  ASSERT_TRUE(sender.AwaitAck(5));

  EXPECT_EQ(server.CountRows(kCountChunks), 2);
  EXPECT_EQ(server.GetRun("r1").lost_chunks(), 3u);
}

TEST(IngestTest, ResumesAfterAReconnectAndARestart) {
  TestServer server;
  {
    Sender sender(server.ingest(), "s1", "r1");
    ASSERT_TRUE(sender.Greet());
    sender.SendChunk(OpChunk(1));
    sender.SendChunk(OpChunk(2));
    ASSERT_TRUE(sender.AwaitAck(2));
  }
  {
    Sender again(server.ingest(), "s1", "r1");
    EXPECT_EQ(again.Greet(), 2u);
  }
  server.Stop();
  server.Start();
  Sender later(server.ingest(), "s1", "r1");
  EXPECT_EQ(later.Greet(), 2u);
  Sender new_epoch(server.ingest(), "s1", "r1", /*epoch=*/2);
  EXPECT_EQ(new_epoch.Greet(), 0u);
}

TEST(IngestTest, GivesASessionToItsNewestStream) {
  TestServer server;
  Sender old(server.ingest(), "s1", "r1");
  ASSERT_TRUE(old.Greet());

  Sender fresh(server.ingest(), "s1", "r1");
  ASSERT_TRUE(fresh.Greet());

  EXPECT_FALSE(old.Read());
  EXPECT_EQ(old.Finish().error_code(), grpc::StatusCode::ABORTED);
  fresh.SendChunk(OpChunk(1));
  EXPECT_TRUE(fresh.AwaitAck(1));
}

// In any order, with repetitions and over any number of streams, every chunk is
// stored once.
TEST(IngestTest, SurvivesDuplicatesHolesAndReconnectsInAnyOrder) {
  constexpr uint64_t kChunks = 400;
  TestServer server;
  std::mt19937 random(7);
  uint64_t committed = 0;
  int connections = 0;
  while (committed < kChunks) {
    ASSERT_LT(++connections, 1000);
    Sender sender(server.ingest(), "s1", "r1");
    const std::optional<uint64_t> resume = sender.Greet();
    ASSERT_TRUE(resume);
    ASSERT_GE(*resume, committed);
    committed = *resume;
    // Sends a burst that jumps back and forth around the expected seq, then
    // disconnects, sometimes without reading the answers.
    uint64_t seq = committed + 1;
    for (int i = 0; i < 30 && seq <= kChunks; ++i) {
      sender.SendChunk(OpChunk(seq));
      const uint64_t dice = random() % 10;
      if (dice == 0 && seq > 3) seq -= 3;
      if (dice == 1) seq += 2;
      ++seq;
    }
    if (random() % 2 == 0) (void)sender.Finish();
  }

  EXPECT_EQ(server.CountRows(kCountChunks), static_cast<int64_t>(kChunks));
  EXPECT_EQ(server.CountRows("SELECT CAST(sum(seq) AS BIGINT) FROM chunks"),
            static_cast<int64_t>(kChunks * (kChunks + 1) / 2));
  EXPECT_EQ(server.GetRun("r1").records(), kChunks * 3);
}

TEST(IngestTest, EndsARunAsKilledWhenOneOfItsSessionsWas) {
  TestServer server;
  Sender first(server.ingest(), "s1", "r1");
  Sender second(server.ingest(), "s2", "r1");
  ASSERT_TRUE(first.Greet());
  ASSERT_TRUE(second.Greet());
  ASSERT_TRUE(first.Bye(/*killed=*/true));
  EXPECT_TRUE(first.Finish().ok());
  EXPECT_EQ(server.GetRun("r1").state(), v1::RUN_STATE_RUNNING);

  ASSERT_TRUE(second.Bye());
  EXPECT_TRUE(second.Finish().ok());

  EXPECT_EQ(server.GetRun("r1").state(), v1::RUN_STATE_KILLED);
}

// ---- Hostile senders ----

struct BadInput {
  const char* what;
  v1::Up up;
  const char* complaint;
};

std::vector<BadInput> BadInputs() {
  std::vector<BadInput> inputs;
  const auto add = [&](const char* what, const char* complaint, auto change) {
    BadInput& input = inputs.emplace_back();
    input.what = what;
    input.complaint = complaint;
    *input.up.mutable_chunk() = OpChunk(1);
    change(*input.up.mutable_chunk());
  };
  const auto with_columns = [](v1::Chunk& chunk, auto change) {
    v1::Columns columns;
    (void)columns.ParseFromString(chunk.body());
    change(columns);
    chunk = MakeChunk(chunk.seq(), columns, chunk.count());
  };
  add("a flipped bit", "damaged",
      [](v1::Chunk& c) { (*c.mutable_body())[0]++; });
  add("seq 0", "chunk.seq", [](v1::Chunk& c) { c.set_seq(0); });
  add("a huge seq", "chunk.seq", [](v1::Chunk& c) { c.set_seq(~0ull); });
  add("another layout", "chunk.layout", [](v1::Chunk& c) { c.set_layout(9); });
  add("too many", "chunk.count", [](v1::Chunk& c) { c.set_count(5000); });
  add("a short column", "columns.kind", [&](v1::Chunk& c) {
    with_columns(
        c, [](v1::Columns& columns) { columns.mutable_kind()->RemoveLast(); });
  });
  add("an unknown kind", "columns.kind[0]", [&](v1::Chunk& c) {
    with_columns(c, [](v1::Columns& columns) { columns.set_kind(0, 99); });
  });
  add("a negative peak", "columns.steps[0].peak_bytes", [&](v1::Chunk& c) {
    with_columns(c, [](v1::Columns& columns) {
      columns.add_steps()->set_peak_bytes(-1);
    });
  });
  add("a plan id with a path", "columns.steps[0].plan_id", [&](v1::Chunk& c) {
    with_columns(c, [](v1::Columns& columns) {
      columns.add_steps()->set_plan_id("../../etc/passwd");
    });
  });
  add("more differing than checked", "columns.checks[0]", [&](v1::Chunk& c) {
    with_columns(c, [](v1::Columns& columns) {
      columns.add_checks()->set_differing(3);
    });
  });
  add("nothing", "chunk.count",
      [](v1::Chunk& c) { c = MakeChunk(1, v1::Columns(), 0); });
  BadInput& lost = inputs.emplace_back();
  lost = {"a backward range", {}, "lost"};
  lost.up.mutable_lost()->set_from(5);
  lost.up.mutable_lost()->set_to(2);
  BadInput& hello = inputs.emplace_back();
  hello = {"a second hello", {}, "hello"};
  hello.up.mutable_hello()->set_session_id("s2");
  return inputs;
}

TEST(IngestTest, RefusesWhatIsMalformedAndNamesIt) {
  TestServer server;
  int number = 0;
  for (const BadInput& input : BadInputs()) {
    SCOPED_TRACE(input.what);
    Sender sender(server.ingest(), "s" + std::to_string(++number), "r1");
    ASSERT_TRUE(sender.Greet());
    sender.Write(input.up);
    const grpc::Status status = sender.Finish();
    EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
    EXPECT_THAT(status.error_message(), HasSubstr(input.complaint));
  }
  EXPECT_EQ(server.CountRows(kCountChunks), 0);
}

TEST(IngestTest, RefusesStreamsThatDoNotBeginProperly) {
  TestServer server;
  {
    Sender sender(server.ingest(), "s1", "r1");
    sender.SendChunk(OpChunk(1));
    EXPECT_EQ(sender.Finish().error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  }
  {
    Sender sender(server.ingest(), "../s1", "r1");
    EXPECT_FALSE(sender.Greet());
    EXPECT_EQ(sender.Finish().error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  }
  {
    Sender sender(server.ingest(), "s1", "r1");
    sender.hello.set_min_version(7);
    sender.hello.set_proto_version(8);
    EXPECT_FALSE(sender.Greet());
    EXPECT_EQ(sender.Finish().error_code(),
              grpc::StatusCode::FAILED_PRECONDITION);
  }
  {
    Sender owner(server.ingest(), "s1", "r1");
    ASSERT_TRUE(owner.Greet());
    Sender thief(server.ingest(), "s1", "r2");
    EXPECT_FALSE(thief.Greet());
    EXPECT_EQ(thief.Finish().error_code(),
              grpc::StatusCode::FAILED_PRECONDITION);
  }
}

TEST(IngestTest, ReportsAFullDiskAndKeepsWhatItAcknowledged) {
  if (InPostgres()) GTEST_SKIP() << "the limit is one of SQLite files";
  DaemonOptions options = TestServer::DefaultOptions();
  options.max_store_pages = 100;  // 400 KiB
  TestServer server(options);
  uint64_t acknowledged = 0;
  {
    Sender sender(server.ingest(), "s1", "r1");
    ASSERT_TRUE(sender.Greet());
    for (uint64_t seq = 1; seq <= 60; ++seq)
      sender.SendChunk(OpChunk(seq, 2000));
    while (const std::optional<v1::Down> down = sender.Read()) {
      if (down->has_ack()) acknowledged = down->ack().committed();
    }
    const grpc::Status status = sender.Finish();
    EXPECT_EQ(status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
    EXPECT_THAT(status.error_message(), HasSubstr("full"));
  }
  EXPECT_GT(acknowledged, 0u);
  EXPECT_LT(acknowledged, 60u);

  // Reading still works, health gives the reason, and nothing acknowledged is
  // lost.
  grpc::ClientContext context;
  v1::ServerStatus status;
  ASSERT_TRUE(
      server.query().GetStatus(&context, v1::StatusRequest(), &status).ok());
  EXPECT_THAT(status.degraded(), HasSubstr("full"));
  EXPECT_THAT(server.Http("GET /readyz HTTP/1.1\r\nHost: localhost\r\n"
                          "Connection: close\r\n\r\n"),
              HasSubstr("503"));
  EXPECT_GE(server.CountRows(kCountChunks), static_cast<int64_t>(acknowledged));
  EXPECT_EQ(server.CountRows("SELECT count(*) FROM pragma_integrity_check"
                             " WHERE integrity_check = 'ok'"),
            1);
}

}  // namespace
}  // namespace reprise::server
