// SPDX-License-Identifier: Apache-2.0
//
// Clients that break the protocol. Each may spoil its own session at most:
// every record of an honest agent beside it must still arrive
// (HonestAgentIsServed in TearDown).
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <ctime>
#include <random>
#include <thread>

#include "formats/convert/digest.h"
#include "server/collect/collector.h"
#include "tests/collect/ingest_peer.h"
#include "tests/collect/raw_agent.h"
#include "tests/collect/temporary_folder.h"

namespace reprise::server {
namespace {

using ::testing::HasSubstr;

size_t OpenMemfds() {
  size_t count = 0;
  for (const auto& entry :
       std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code gone;
    const auto target = std::filesystem::read_symlink(entry, gone).string();
    count += target.find("memfd:") != std::string::npos ? 1 : 0;
  }
  return count;
}

class MaliciousTest : public testing::Test {
 protected:
  void SetUp() override {
    CollectorOptions options;
    options.agent_socket = socket_;
    options.spool_path = folder_ / "spool.db";
    options.channel = peer_.Channel();
    auto started = Collector::Start(std::move(options));
    ASSERT_TRUE(started.ok()) << started.status().message();
    collector_ = *std::move(started);
  }

  void TearDown() override {
    RawAgent honest;
    ASSERT_TRUE(honest.Connect(socket_)) << honest.refusal();
    honest.PushAllocs(0, 5000);
    EXPECT_TRUE(Eventually([&] {
      return peer_.Of(honest.hello.session_id).addresses.size() == 5000;
    }));
  }

  // Expects that the collector answers with this sentence and closes the
  // connection.
  static void ExpectRefused(RawAgent& agent, const std::string& sentence) {
    const auto reply = agent.ReceiveType(REPRISE_MSG_REFUSED);
    ASSERT_TRUE(reply);
    if (reply->type == REPRISE_MSG_REFUSED) {
      EXPECT_THAT(reply->body, HasSubstr(sentence));
      EXPECT_EQ(agent.Receive()->type, 0);
    } else {
      ADD_FAILURE() << "closed without a word, expected: " << sentence;
    }
  }

  TemporaryFolder folder_;
  const std::string socket_ = folder_ / "agent.sock";
  IngestPeer peer_;
  std::unique_ptr<Collector> collector_;
};

// ---- Messages ----

TEST_F(MaliciousTest, WrongMagicLayoutOrSizeIsRefused) {
  reprise_msg_header head{};
  head.magic = REPRISE_WIRE_MAGIC;
  head.type = REPRISE_MSG_HELLO;
  head.layout = REPRISE_RING_LAYOUT;
  const auto send = [&](const reprise_msg_header& header, size_t body,
                        const std::string& sentence) {
    RawAgent agent;
    ASSERT_TRUE(agent.Dial(socket_));
    std::string packet(reinterpret_cast<const char*>(&header), sizeof(header));
    ASSERT_TRUE(agent.SendBytes(packet + std::string(body, 'x')));
    ExpectRefused(agent, sentence);
  };

  reprise_msg_header wrong = head;
  wrong.magic = 1;
  send(wrong, 0, "magic");
  wrong = head;
  wrong.layout = 9;
  send(wrong, 0, "layout 9");
  wrong = head;
  wrong.size = 4'000'000'000;
  send(wrong, 8, "announced 4000000000 bytes");
  wrong = head;
  wrong.size = 20'000;
  send(wrong, 20'000, "larger than");
  RawAgent tiny;
  ASSERT_TRUE(tiny.Dial(socket_));
  ASSERT_TRUE(tiny.SendBytes("abc"));
  ExpectRefused(tiny, "magic");
}

TEST_F(MaliciousTest, AHelloThatIsCutShortOrHasNoRingIsRefused) {
  RawAgent agent;
  ASSERT_TRUE(agent.Dial(socket_));
  ASSERT_TRUE(agent.Send(REPRISE_MSG_HELLO, "short", {agent.ring_fd()}));
  ExpectRefused(agent, "hello: needs");

  const std::string body(reinterpret_cast<const char*>(&agent.hello),
                         sizeof(agent.hello));
  ASSERT_TRUE(agent.Dial(socket_));
  ASSERT_TRUE(agent.Send(REPRISE_MSG_HELLO, body));
  ExpectRefused(agent, "got 0");
  ASSERT_TRUE(agent.Dial(socket_));
  ASSERT_TRUE(agent.Send(REPRISE_MSG_HELLO, body,
                         {agent.ring_fd(), agent.ring_fd(), agent.ring_fd()}));
  ExpectRefused(agent, "got 3");
  ASSERT_TRUE(agent.Dial(socket_));
  ASSERT_TRUE(agent.Send(REPRISE_MSG_DEFS, ""));
  ExpectRefused(agent, "expected as the first message");
}

TEST_F(MaliciousTest, EveryFieldOfAHelloIsChecked) {
  const auto refused = [&](auto change, const std::string& sentence) {
    RawAgent agent;
    change(agent);
    EXPECT_FALSE(agent.Connect(socket_)) << sentence;
    EXPECT_THAT(agent.refusal(), HasSubstr(sentence));
  };
  refused([](RawAgent& a) { a.hello.abi = 2; }, "abi");
  refused([](RawAgent& a) { a.hello.ring_layout = 2; }, "ring_layout");
  refused([](RawAgent& a) { a.hello.slots = 5000; }, "power of two");
  refused([](RawAgent& a) { a.hello.slots = 8192; }, "the memfd has");
  refused([](RawAgent& a) { a.header()->slots = 8192; }, "its header 8192");
  refused([](RawAgent& a) { a.header()->head = 1u << 20; }, "start a new");
  refused([](RawAgent& a) { a.header()->tail = 5; }, "start a new");
  refused([](RawAgent& a) { a.hello.realtime_ns = INT64_MIN; }, "clock");
  refused(
      [](RawAgent& a) {
        std::memset(a.hello.session_id, 'a', sizeof(a.hello.session_id));
      },
      "zero-terminated");
  refused([](RawAgent& a) { std::strcpy(a.hello.session_id, "x"); }, "UUID");
  refused([](RawAgent& a) { std::strcpy(a.hello.run_id, "a b"); }, "run_id");
  refused([](RawAgent& a) { a.hello.run_id[0] = 0; }, "run_id");
}

TEST_F(MaliciousTest, LabelsThatLieAboutTheirSizeAreRefused) {
  RawAgent agent;
  agent.hello.labels_bytes = 1000;
  const std::string body(reinterpret_cast<const char*>(&agent.hello),
                         sizeof(agent.hello));
  ASSERT_TRUE(agent.Dial(socket_));
  ASSERT_TRUE(agent.Send(REPRISE_MSG_HELLO, body + "a=b", {agent.ring_fd()}));
  ExpectRefused(agent, "labels_bytes");
}

TEST_F(MaliciousTest, MessagesThatMakeNoSenseEndTheConnection) {
  const auto refused = [&](uint16_t type, const std::string& body,
                           const std::string& sentence) {
    RawAgent agent;
    ASSERT_TRUE(agent.Connect(socket_));
    ASSERT_TRUE(agent.Send(type, body));
    ExpectRefused(agent, sentence);
  };
  const uint32_t lying[2] = {1, 0xfffffff0};
  const std::string defs(reinterpret_cast<const char*>(lying), sizeof(lying));
  refused(REPRISE_MSG_DEFS, defs, "are left");
  refused(REPRISE_MSG_DEFS, "abc", "ends inside");
  refused(REPRISE_MSG_BYE, "x", "bye");
  refused(REPRISE_MSG_GRAPH, "x", "graph");
  refused(REPRISE_MSG_PLAN, "", "not for a collector");
  refused(999, "", "type 999");
}

TEST_F(MaliciousTest, FilesNobodyAskedForAreClosed) {
  RawAgent agent;
  ASSERT_TRUE(agent.Connect(socket_));
  for (int i = 0; i < 20; ++i) {
    ASSERT_TRUE(agent.Send(REPRISE_MSG_CAPS, "ring=4096\n",
                           std::vector<int>(10, agent.ring_fd())));
  }
  ASSERT_TRUE(Eventually([&] {
    const auto agents = collector_->Agents();
    return !agents.empty() && !agents[0].capabilities.empty();
  }));
  EXPECT_TRUE(Eventually([&] { return OpenMemfds() == 1; }))
      << "the agent's own ring and no other";
}

TEST_F(MaliciousTest, AFloodOfMessagesDelaysButDoesNotStarveOthers) {
  RawAgent flood, honest;
  ASSERT_TRUE(flood.Connect(socket_));
  ASSERT_TRUE(honest.Connect(socket_));
  std::atomic<bool> over{false};
  std::thread flooder([&] {
    for (uint32_t i = 1; !over; ++i) {
      flood.SendName(i, std::string(1000, 'n'));
    }
  });

  honest.PushAllocs(0, 20'000);

  EXPECT_TRUE(Eventually([&] {
    return peer_.Of(honest.hello.session_id).addresses.size() == 20'000;
  }));
  over = true;
  flooder.join();
}

// CPU time of all threads but this one.
double CpuSecondsOfOthers() {
  timespec process{}, own{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &process);
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &own);
  return static_cast<double>(process.tv_sec - own.tv_sec) +
         static_cast<double>(process.tv_nsec - own.tv_nsec) * 1e-9;
}

// More of them than places: the others wait in the socket's queue.
TEST_F(MaliciousTest, SilentConnectionsDoNotKeepOthersOutNorTheCollectorBusy) {
  std::vector<std::unique_ptr<RawAgent>> silent;
  for (int i = 0; i < 80; ++i) {
    silent.push_back(std::make_unique<RawAgent>());
    ASSERT_TRUE(silent.back()->Dial(socket_));
  }
  const double before = CpuSecondsOfOthers();
  RawAgent honest;
  EXPECT_TRUE(honest.Connect(socket_)) << "once silent ones are thrown out";
  // About 20 turns of the collector. Polling without a pause needs as much CPU
  // time as there is.
  EXPECT_LT(CpuSecondsOfOthers() - before, 0.25);
}

// ---- Graphs ----

TEST_F(MaliciousTest, GraphFilesAreCheckedBeforeTheyAreLookedAt) {
  const auto refused = [&](int fd, uint64_t announced,
                           const std::string& sentence) {
    RawAgent agent;
    ASSERT_TRUE(agent.Connect(socket_));
    reprise_msg_graph raw{};
    raw.graph_id = 1;
    raw.bytes = announced;
    raw.budget_bytes = raw.capabilities_bytes = 1;
    std::string body(reinterpret_cast<const char*>(&raw), sizeof(raw));
    ASSERT_TRUE(
        agent.Send(REPRISE_MSG_GRAPH, body + std::string(2, '\0'), {fd}));
    close(fd);
    const auto reply = agent.ReceiveType(REPRISE_MSG_PLAN_STATUS);
    ASSERT_TRUE(reply);
    EXPECT_THAT(reply->body, HasSubstr(sentence));
  };
  refused(TestMemfd("{}", 0), 2, "lacks seals");
  refused(TestMemfd("{}", F_SEAL_WRITE | F_SEAL_GROW | F_SEAL_SEAL), 2,
          "lacks seals");
  refused(TestMemfd("{}", kAllSeals), 3, "announced 3 bytes");
  refused(TestMemfd("{}", kAllSeals), 0, "announced 0 bytes");
  refused(TestMemfd("{}", kAllSeals), UINT64_MAX, "are allowed");
  refused(open("/dev/zero", O_RDONLY), 2, "not a sealable memfd");
}

TEST_F(MaliciousTest, GraphTextsThatLieAboutTheirSizeEndTheConnection) {
  RawAgent agent;
  ASSERT_TRUE(agent.Connect(socket_));
  reprise_msg_graph raw{};
  raw.bytes = 2;
  raw.budget_bytes = 0xffffffff;
  raw.capabilities_bytes = 3;  // the sum overflows 32 bits to 2
  std::string body(reinterpret_cast<const char*>(&raw), sizeof(raw));
  const int fd = TestMemfd("{}", kAllSeals);
  ASSERT_TRUE(agent.Send(REPRISE_MSG_GRAPH, body + std::string(2, '\0'), {fd}));
  close(fd);
  ExpectRefused(agent, "sizes disagree");
}

TEST_F(MaliciousTest, AnAgentThatAsksAndNeverReadsIsDropped) {
  RawAgent agent;
  ASSERT_TRUE(agent.Connect(socket_));
  const uint64_t refused = collector_->stats().refused;
  // "{" is not valid JSON, so the collector sends two answers to each, which
  // the agent never reads.
  EXPECT_TRUE(Eventually([&] {
    agent.SendGraph("{", "1", "tape");
    return collector_->stats().refused > refused;
  }));
}

// ---- Rings ----

TEST_F(MaliciousTest, AHeadThatJumpsEndsTheSession) {
  RawAgent agent;
  ASSERT_TRUE(agent.Connect(socket_));
  agent.PushAllocs(0, 100);
  ASSERT_TRUE(Eventually([&] {
    return peer_.Of(agent.hello.session_id).addresses.size() == 100;
  }));
  agent.header()->head = UINT64_MAX - 5;

  ExpectRefused(agent, "ring: head");
  EXPECT_TRUE(Eventually(
      [&] { return !peer_.Of(agent.hello.session_id).byes.empty(); }));
}

TEST_F(MaliciousTest, AnotherRingUnderTheSameSessionIsRefused) {
  RawAgent agent, thief;
  ASSERT_TRUE(agent.Connect(socket_));
  thief.hello = agent.hello;

  EXPECT_FALSE(thief.Connect(socket_));

  EXPECT_THAT(thief.refusal(), HasSubstr("another ring"));
  agent.PushAllocs(0, 100);
  EXPECT_TRUE(Eventually([&] {
    return peer_.Of(agent.hello.session_id).addresses.size() == 100;
  }));
}

TEST_F(MaliciousTest, ScribblingWhileReadSpoilsOnlyItsOwnSession) {
  RawAgent agent;
  ASSERT_TRUE(agent.Connect(socket_));
  std::atomic<bool> over{false};
  std::thread scribbler([&] {
    std::minstd_rand random(1);
    while (!over) {
      auto* words = reinterpret_cast<uint64_t*>(
          agent.slot(random() % REPRISE_RING_MIN_SLOTS));
      const uint64_t value = uint64_t{random()} << (random() % 32);
      __atomic_store_n(&words[random() % 8], value, __ATOMIC_RELAXED);
      // Sometimes a valid sequence number, so that the reader also parses
      // garbage bodies.
      const uint64_t p = agent.header()->tail % (1u << 30) + random() % 8;
      __atomic_store_n(&agent.slot(p)->sequence, p + 1, __ATOMIC_RELAXED);
      __atomic_store_n(&agent.header()->head, p + random() % 64,
                       __ATOMIC_RELAXED);
    }
  });
  RawAgent honest;
  ASSERT_TRUE(honest.Connect(socket_));
  honest.PushAllocs(0, 50'000);

  EXPECT_TRUE(Eventually([&] {
    return peer_.Of(honest.hello.session_id).addresses.size() == 50'000;
  }));
  over = true;
  scribbler.join();
}

TEST_F(MaliciousTest, RandomRecordsNeverMakeAChunkTheServerRefuses) {
  RawAgent agent;
  ASSERT_TRUE(agent.Connect(socket_));
  std::minstd_rand random(7);
  for (int i = 0; i < 100'000; ++i) {
    reprise_slot record{};
    auto* words = reinterpret_cast<uint32_t*>(&record);
    for (size_t w = 0; w < sizeof(record) / 4; ++w) {
      words[w] = random() % 3 == 0 ? 0 : random();
    }
    record.kind = static_cast<uint16_t>(random() % 20);
    record.clock_id = static_cast<uint8_t>(random() % 3);
    while (!agent.Push(record)) std::this_thread::yield();
  }
  ASSERT_TRUE(agent.SendBye());

  EXPECT_TRUE(Eventually(
      [&] { return !peer_.Of(agent.hello.session_id).byes.empty(); }));
  const Received got = peer_.Of(agent.hello.session_id);
  EXPECT_TRUE(got.lost.empty());
  EXPECT_GT(got.byes[0].torn(), 0u) << "malformed ones are counted";
}

}  // namespace
}  // namespace reprise::server
