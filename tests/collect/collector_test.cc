// SPDX-License-Identifier: Apache-2.0
//
// The collector between a test peer that speaks the agent's protocol and one
// that speaks the server's.
#include "server/collect/collector.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <fstream>
#include <numeric>

#include "formats/convert/digest.h"
#include "tests/collect/ingest_peer.h"
#include "tests/collect/raw_agent.h"
#include "tests/collect/temporary_folder.h"

namespace reprise::server {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

std::vector<uint64_t> Numbers(uint64_t first, uint64_t count) {
  std::vector<uint64_t> numbers(count);
  std::iota(numbers.begin(), numbers.end(), first);
  return numbers;
}

class CollectorTest : public testing::Test {
 protected:
  void SetUp() override { Start(); }

  void Start() {
    CollectorOptions options;
    options.agent_socket = socket();
    options.spool_path = folder_ / "spool.db";
    options.channel = peer_.Channel();
    options.version = "0.1.0";
    options.spool_max_bytes = spool_max_bytes_;
    auto started = Collector::Start(std::move(options));
    ASSERT_TRUE(started.ok()) << started.status().message();
    collector_ = *std::move(started);
  }
  void Restart() {
    collector_.reset();
    Start();
  }
  std::string socket() const { return folder_ / "agent.sock"; }

  // Waits until the server has received exactly these allocs, each once and in
  // order.
  void ExpectAllocs(const RawAgent& agent, uint64_t count) {
    EXPECT_TRUE(Eventually([&] {
      return peer_.Of(agent.hello.session_id).addresses.size() >= count;
    }));
    EXPECT_EQ(peer_.Of(agent.hello.session_id).addresses, Numbers(0, count));
  }
  bool EventuallyEnded(const RawAgent& agent) {
    return Eventually(
        [&] { return !peer_.Of(agent.hello.session_id).byes.empty(); });
  }

  TemporaryFolder folder_;
  IngestPeer peer_;
  int64_t spool_max_bytes_ = int64_t{1} << 30;
  std::unique_ptr<Collector> collector_;
};

// ---- Records ----

TEST_F(CollectorTest, BringsEveryRecordToTheServerOnceAndInOrder) {
  RawAgent agent;
  ASSERT_TRUE(agent.Connect(socket()));

  agent.PushAllocs(0, 50'000);

  ExpectAllocs(agent, 50'000);
  EXPECT_TRUE(Eventually([&] { return collector_->spool_bytes() == 0; }))
      << "acknowledged chunks leave the spool";
}

TEST_F(CollectorTest, TellsTheServerWhoTheAgentIs) {
  RawAgent agent;
  agent.hello.rank = 3;
  agent.labels = "name=train\nbad line\nnote=\xff\n";
  ASSERT_TRUE(agent.Connect(socket()));

  ASSERT_TRUE(Eventually(
      [&] { return peer_.Of(agent.hello.session_id).streams == 1; }));
  const Received got = peer_.Of(agent.hello.session_id);
  EXPECT_EQ(got.run_id, agent.hello.run_id);
  EXPECT_EQ(got.info.rank(), 3u);
  EXPECT_EQ(got.info.uid(), getuid());
  EXPECT_EQ(got.info.labels().at("name"), "train");
  EXPECT_EQ(got.info.labels().at("note"), "\xef\xbf\xbd");
}

TEST_F(CollectorTest, SendsNamesBeforeTheRecordsThatUseThem) {
  RawAgent agent;
  ASSERT_TRUE(agent.Connect(socket()));
  for (uint32_t id = 1; id <= 200; ++id) {
    ASSERT_TRUE(agent.SendName(id, "op " + std::to_string(id)));
    reprise_slot record = AllocRecord(0);
    record.kind = REPRISE_RECORD_OP_BEGIN;
    record.body.op = {id, 0, 0, 0, id, 0};
    ASSERT_TRUE(agent.Push(record));
  }

  ASSERT_TRUE(Eventually([&] {
    return peer_.Of(agent.hello.session_id).kinds[REPRISE_RECORD_OP_BEGIN] ==
           200;
  }));
  const Received got = peer_.Of(agent.hello.session_id);
  EXPECT_EQ(got.unnamed, 0u);
  EXPECT_EQ(got.names.at(117), "op 117");
}

TEST_F(CollectorTest, ReportsStepsChecksAndPlanStatesWithTheirNames) {
  RawAgent agent;
  ASSERT_TRUE(agent.Connect(socket()));
  agent.PushStepDone(5);
  agent.PushStepMem(5);
  reprise_slot verify = AllocRecord(0);
  verify.kind = REPRISE_RECORD_VERIFY;
  verify.body.verify = {5, 0x77, 4, 12, 1, 31, 0};
  agent.Push(verify);
  reprise_slot state = AllocRecord(0);
  state.kind = REPRISE_RECORD_PLAN_STATE;
  state.body.plan_state = {};
  state.body.plan_state.plan_id = 0x77;
  state.body.plan_state.state = 3;
  state.body.plan_state.why_name = 32;
  agent.Push(state);
  ASSERT_TRUE(agent.SendName(31, "fc.weight"));
  ASSERT_TRUE(agent.SendName(32, "gradients differ"));

  ASSERT_TRUE(Eventually(
      [&] { return !peer_.Of(agent.hello.session_id).states.empty(); }));
  const Received got = peer_.Of(agent.hello.session_id);
  ASSERT_THAT(got.steps, SizeIs(1));
  EXPECT_EQ(got.steps[0].reserved_bytes(), 3000);
  ASSERT_THAT(got.checks, SizeIs(1));
  EXPECT_EQ(got.checks[0].first_name(), "fc.weight");
  EXPECT_EQ(got.states[0].why(), "gradients differ");
  EXPECT_EQ(got.states[0].plan_id(), "0000000000000077");
}

TEST_F(CollectorTest, CountsAndDatesWhatDidNotFitIntoTheRing) {
  peer_.deaf = true;  // the server may ignore everything: only the ring matters
  RawAgent agent;
  uint64_t dropped = 0;
  for (int i = 0; i < 5000; ++i) dropped += agent.PushAlloc(0) ? 0 : 1;
  peer_.deaf = false;
  ASSERT_TRUE(agent.Connect(socket()));
  ASSERT_TRUE(
      Eventually([&] { return agent.header()->tail == agent.header()->head; }));
  reprise_slot loss = AllocRecord(0);
  loss.kind = REPRISE_RECORD_LOSS;
  loss.body.loss = {};
  loss.body.loss.last_ts = loss.ts_ns + 10;
  loss.body.loss.count = dropped;
  ASSERT_TRUE(agent.Push(loss));
  ASSERT_TRUE(agent.SendBye());

  ASSERT_TRUE(EventuallyEnded(agent));
  const Received got = peer_.Of(agent.hello.session_id);
  EXPECT_EQ(dropped, 5000u - REPRISE_RING_MIN_SLOTS);
  EXPECT_THAT(got.losses, ElementsAre(dropped));
  EXPECT_EQ(got.dropped_before, dropped);
  EXPECT_EQ(got.byes[0].dropped(), dropped);
}

// ---- Ends ----

TEST_F(CollectorTest, TakesAGoodbyeAsTheEnd) {
  RawAgent agent;
  ASSERT_TRUE(agent.Connect(socket()));
  agent.PushAllocs(0, 10);
  ASSERT_TRUE(agent.SendBye());

  ASSERT_TRUE(EventuallyEnded(agent));
  const Received got = peer_.Of(agent.hello.session_id);
  EXPECT_THAT(got.addresses, SizeIs(10));
  EXPECT_FALSE(got.byes[0].killed());
  EXPECT_EQ(got.byes[0].pushed(), 10u);
  EXPECT_TRUE(Eventually([&] { return collector_->Agents().empty(); }));
  EXPECT_EQ(collector_->ConnectedAgents(), 0);
}

// A separate process pushes records and is killed, as by the out-of-memory
// killer.
TEST_F(CollectorTest, KeepsEverythingAKilledProcessHadPushed) {
  RawAgent agent;  // the parent's mapping keeps its header visible
  const pid_t child = fork();
  if (child == 0) {
    // Nothing but calls that are safe after fork: no gRPC, no locks.
    if (!agent.Connect(socket())) _exit(1);
    agent.PushAllocs(0, 30'000);
    agent.Tear();
    agent.PushStepDone(77);
    kill(getpid(), SIGKILL);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFSIGNALED(status));

  ASSERT_TRUE(EventuallyEnded(agent));
  const Received got = peer_.Of(agent.hello.session_id);
  EXPECT_EQ(got.addresses, Numbers(0, 30'000));
  ASSERT_THAT(got.steps, SizeIs(1));
  EXPECT_TRUE(got.steps[0].incomplete()) << "its second half was never pushed";
  EXPECT_TRUE(got.byes[0].killed());
  EXPECT_EQ(got.byes[0].torn(), 1u);
}

TEST_F(CollectorTest, TellsWhereAKilledProcessWas) {
  RawAgent agent;
  const pid_t child = fork();
  if (child == 0) {
    if (!agent.Connect(socket())) _exit(1);
    agent.PushAllocs(0, 10);
    agent.header()->place = {.step = 7,
                             .step_ns = 1234,
                             .graph_id = 0xa,
                             .plan_id = 0xb,
                             .op = 3,
                             .phase = 2,
                             .pad = {}};
    kill(getpid(), SIGKILL);
  }
  ASSERT_EQ(waitpid(child, nullptr, 0), child);

  ASSERT_TRUE(EventuallyEnded(agent));
  const Received got = peer_.Of(agent.hello.session_id);
  ASSERT_THAT(got.moments, SizeIs(1));
  const v1::Moment& moment = got.moments[0];
  EXPECT_EQ(moment.reason(), v1::MOMENT_REASON_KILLED);
  EXPECT_EQ(moment.step(), 7u);
  EXPECT_EQ(moment.at_ns(), 1234);
  EXPECT_EQ(moment.phase(), v1::PHASE_BACKWARD);
  EXPECT_EQ(moment.graph_id(), "000000000000000a");
  EXPECT_EQ(moment.plan_id(), "000000000000000b");
  EXPECT_EQ(moment.op(), 2u) << "the word is 1 + op";
}

TEST_F(CollectorTest, TellsNoMomentOfAJobThatEndedByItself) {
  RawAgent agent;
  ASSERT_TRUE(agent.Connect(socket()));
  agent.header()->place.step_ns = 1234;

  ASSERT_TRUE(agent.SendBye());
  agent.Hang();

  ASSERT_TRUE(EventuallyEnded(agent));
  EXPECT_THAT(peer_.Of(agent.hello.session_id).moments, IsEmpty());
}

// ---- Snapshots ----

TEST_F(CollectorTest, BringsWhatFilledTheMemoryToTheServer) {
  RawAgent agent;
  ASSERT_TRUE(agent.Connect(socket()));
  const auto send = [&agent](std::string_view json) {
    reprise_msg_bulk raw{.bytes = json.size()};
    const int fd = TestMemfd(json, kAllSeals);
    EXPECT_TRUE(agent.Send(REPRISE_MSG_SNAPSHOT,
                           {reinterpret_cast<const char*>(&raw), sizeof(raw)},
                           {fd}));
    close(fd);
  };

  send("no json");
  send(R"({"reason": 1, "step": "5"})");  // an agent never reports its own kill
  send(R"({"reason": 2, "storages": [{"bytes": -1}]})");
  send(R"({"reason": 2, "step": "5", "live_bytes": 48, "unknown": [],
           "storages": [{"bytes": "32", "made_by": "aten.mm.default"}]})");

  ASSERT_TRUE(Eventually(
      [&] { return !peer_.Of(agent.hello.session_id).moments.empty(); }));
  const Received got = peer_.Of(agent.hello.session_id);
  ASSERT_THAT(got.moments, SizeIs(1));
  EXPECT_EQ(got.moments[0].step(), 5u);
  EXPECT_EQ(got.moments[0].live_bytes(), 48);
  ASSERT_EQ(got.moments[0].storages_size(), 1);
  EXPECT_EQ(got.moments[0].storages(0).made_by(), "aten.mm.default");
  // The invalid moments did not harm the session.
  agent.PushAllocs(0, 10);
  ExpectAllocs(agent, 10);
}

TEST_F(CollectorTest, WaitsForAnAgentThatOnlyLostItsConnection) {
  RawAgent agent;
  ASSERT_TRUE(agent.Connect(socket()));
  agent.PushAllocs(0, 100);
  agent.Hang();
  ASSERT_TRUE(Eventually([&] { return collector_->ConnectedAgents() == 0; }));
  agent.PushAllocs(100, 100);

  ASSERT_TRUE(agent.Connect(socket())) << agent.refusal();
  agent.PushAllocs(200, 100);

  ExpectAllocs(agent, 300);
  EXPECT_THAT(peer_.Of(agent.hello.session_id).byes, IsEmpty());
}

// ---- Restarts ----

TEST_F(CollectorTest, ResumesARingWhereTheSpoolLeftIt) {
  RawAgent agent;
  ASSERT_TRUE(agent.Connect(socket()));
  for (uint64_t round = 0; round < 5; ++round) {
    agent.PushAllocs(round * 3000, 3000);
    Restart();
    ASSERT_TRUE(agent.Connect(socket())) << agent.refusal();
  }

  ExpectAllocs(agent, 15'000);
}

TEST_F(CollectorTest, ForwardsTheSpoolOfSessionsWhoseAgentIsGone) {
  peer_.Suspend();
  RawAgent agent;
  ASSERT_TRUE(agent.Connect(socket()));
  agent.PushAllocs(0, 10'000);
  ASSERT_TRUE(agent.SendName(1, "late"));
  ASSERT_TRUE(agent.SendBye());
  ASSERT_TRUE(Eventually([&] { return collector_->ConnectedAgents() == 0; }));
  EXPECT_GT(collector_->spool_bytes(), 0);
  collector_.reset();

  peer_.Resume();
  Start();

  ASSERT_TRUE(EventuallyEnded(agent));
  const Received got = peer_.Of(agent.hello.session_id);
  EXPECT_EQ(got.addresses, Numbers(0, 10'000));
  EXPECT_EQ(got.names.at(1), "late");
  EXPECT_TRUE(Eventually([&] { return collector_->Agents().empty(); }));
}

TEST_F(CollectorTest, LosesAndDoublesNothingWhileTheServerComesAndGoes) {
  RawAgent agent;
  ASSERT_TRUE(agent.Connect(socket()));
  for (uint64_t round = 0; round < 6; ++round) {
    agent.PushAllocs(round * 10'000, 10'000);
    peer_.Suspend();
    agent.PushAllocs(60'000 + round * 1000, 0);
    peer_.Resume();
  }

  ExpectAllocs(agent, 60'000);
}

TEST_F(CollectorTest, SendsAgainWhatWasTakenAndNotAcknowledged) {
  peer_.deaf = true;
  RawAgent agent;
  ASSERT_TRUE(agent.Connect(socket()));
  agent.PushAllocs(0, 20'000);
  ASSERT_TRUE(
      Eventually([&] { return collector_->stats().records == 20'000; }));
  peer_.deaf = false;  // the next chunk finds a hole and asks for the rest
  agent.PushAllocs(20'000, 1000);
  // With max_inflight chunks unacknowledged nothing more is sent: break the
  // stream.
  peer_.Suspend();
  peer_.Resume();

  ExpectAllocs(agent, 21'000);
}

TEST_F(CollectorTest, ReportsAsLostWhatTheServerHadAndForgot) {
  RawAgent agent;
  ASSERT_TRUE(agent.Connect(socket()));
  agent.PushAllocs(0, 5000);
  ExpectAllocs(agent, 5000);
  ASSERT_TRUE(Eventually([&] { return collector_->spool_bytes() == 0; }));
  peer_.Suspend();
  peer_.Forget();
  peer_.Resume();
  agent.PushAllocs(5000, 5000);

  ASSERT_TRUE(Eventually([&] {
    return peer_.Of(agent.hello.session_id).addresses.size() >= 5000;
  }));
  const Received got = peer_.Of(agent.hello.session_id);
  EXPECT_EQ(got.addresses, Numbers(5000, 5000));
  ASSERT_THAT(got.lost, SizeIs(1));
  EXPECT_EQ(got.lost[0].from(), 1u);
  EXPECT_THAT(got.lost[0].reason(), HasSubstr("acknowledged"));
}

TEST_F(CollectorTest, StartsANewEpochWhenItsSpoolWasLost) {
  RawAgent agent;
  ASSERT_TRUE(agent.Connect(socket()));
  agent.PushAllocs(0, 5000);
  ExpectAllocs(agent, 5000);
  collector_.reset();
  for (const char* suffix : {"", "-wal", "-shm"}) {
    unlink((folder_ / (std::string("spool.db") + suffix)).c_str());
  }
  Start();
  ASSERT_TRUE(agent.Connect(socket())) << agent.refusal();
  agent.PushAllocs(5000, 5000);

  ExpectAllocs(agent, 10'000);
  EXPECT_THAT(peer_.Of(agent.hello.session_id).committed, SizeIs(2));
}

TEST_F(CollectorTest, GivesUpAChunkTheServerNeverTakesAndSaysSo) {
  peer_.poison = 4711;
  RawAgent agent;
  ASSERT_TRUE(agent.Connect(socket()));
  agent.PushAllocs(0, 20'000);

  ASSERT_TRUE(Eventually([&] {
    const auto got = peer_.Of(agent.hello.session_id).addresses;
    return !got.empty() && got.back() == 19'999;
  }));
  const Received got = peer_.Of(agent.hello.session_id);
  ASSERT_THAT(got.lost, SizeIs(1));
  EXPECT_EQ(got.lost[0].from(), got.lost[0].to());
  EXPECT_THAT(got.lost[0].reason(), HasSubstr("poison"));
  EXPECT_EQ(collector_->stats().chunks_lost, 1u);
}

// ---- A full spool ----

class SmallSpoolTest : public CollectorTest {
 protected:
  SmallSpoolTest() { spool_max_bytes_ = 256 << 10; }
};

TEST_F(SmallSpoolTest, TrimsTheOldestChunksAndReportsThemAsLost) {
  peer_.Suspend();
  RawAgent agent;
  ASSERT_TRUE(agent.Connect(socket()));
  agent.PushAllocs(0, 100'000);
  ASSERT_TRUE(
      Eventually([&] { return collector_->stats().records == 100'000; }));
  EXPECT_LT(collector_->spool_bytes(), 1 << 20);
  peer_.Resume();

  ASSERT_TRUE(Eventually([&] {
    const auto got = peer_.Of(agent.hello.session_id).addresses;
    return !got.empty() && got.back() == 99'999;
  }));
  const Received got = peer_.Of(agent.hello.session_id);
  ASSERT_THAT(got.lost, SizeIs(1));
  EXPECT_THAT(got.lost[0].reason(), HasSubstr("trimmed"));
  EXPECT_EQ(got.addresses,
            Numbers(100'000 - got.addresses.size(), got.addresses.size()));
}

// ---- Retire ----

TEST_F(CollectorTest, RetiresOnceNobodyIsThere) {
  RawAgent newcomer;
  ASSERT_TRUE(newcomer.Dial(socket()));
  EXPECT_FALSE(collector_->Retire()) << "it has connected, and says HELLO next";
  ASSERT_TRUE(newcomer.Connect(socket())) << newcomer.refusal();
  EXPECT_FALSE(collector_->Retire());
  newcomer.SendBye();
  newcomer.Hang();

  ASSERT_TRUE(Eventually([&] { return collector_->Retire(); }));

  RawAgent late;
  EXPECT_FALSE(late.Dial(socket()));
}

// ---- Drain ----

TEST_F(CollectorTest, DrainsEverythingAndLeavesTheSessionToTheNextDaemon) {
  RawAgent agent;
  ASSERT_TRUE(agent.Connect(socket()));
  agent.PushAllocs(0, 3000);

  ASSERT_TRUE(collector_->Drain(std::chrono::seconds(30)).ok());

  EXPECT_EQ(peer_.Of(agent.hello.session_id).addresses, Numbers(0, 3000));
  EXPECT_THAT(peer_.Of(agent.hello.session_id).byes, IsEmpty());
  EXPECT_NE(access(socket().c_str(), F_OK), 0) << "nobody new comes in";
  Restart();
  ASSERT_TRUE(agent.Connect(socket())) << agent.refusal();
}

TEST_F(CollectorTest, DrainKeepsItsDeadlineWhenTheServerIsGone) {
  peer_.Suspend();
  RawAgent agent;
  ASSERT_TRUE(agent.Connect(socket()));
  agent.PushAllocs(0, 3000);

  const Status drained = collector_->Drain(std::chrono::milliseconds(300));

  EXPECT_EQ(drained.code(), Code::kDeadlineExceeded);
  EXPECT_THAT(drained.message(), HasSubstr("stay in the spool"));
}

// ---- Start ----

TEST_F(CollectorTest, ListensOnASocketOnlyItsOwnerMayUse) {
  struct stat status {};
  ASSERT_EQ(stat(socket().c_str(), &status), 0);
  EXPECT_TRUE(S_ISSOCK(status.st_mode));
  EXPECT_EQ(status.st_mode & 0777, 0600u);
}

TEST_F(CollectorTest, RefusesASocketSomebodyAnswersOn) {
  CollectorOptions options;
  options.agent_socket = socket();
  options.spool_path = folder_ / "other.db";
  options.channel = peer_.Channel();

  const auto second = Collector::Start(std::move(options));

  EXPECT_EQ(second.status().code(), Code::kFailedPrecondition);
  EXPECT_THAT(second.status().message(), HasSubstr("another daemon answers"));
}

TEST_F(CollectorTest, RefusesPathsThatCannotBeASocket) {
  const auto start = [&](const std::string& path) {
    CollectorOptions options;
    options.agent_socket = path;
    options.spool_path = folder_ / "other.db";
    options.channel = peer_.Channel();
    return Collector::Start(std::move(options)).status();
  };
  { std::ofstream(folder_ / "file") << "precious"; }

  EXPECT_EQ(start("").code(), Code::kInvalidArgument);
  EXPECT_EQ(start(folder_ / std::string(200, 'x')).code(),
            Code::kInvalidArgument);
  EXPECT_EQ(start(folder_ / "file").code(), Code::kFailedPrecondition);
  EXPECT_EQ(start(folder_ / "file/sock").code(), Code::kPermissionDenied);
  EXPECT_EQ(access((folder_ / "file").c_str(), F_OK), 0);
}

}  // namespace
}  // namespace reprise::server
