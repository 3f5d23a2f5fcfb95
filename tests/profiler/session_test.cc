// A session from HELLO to BYE, with everything that can go wrong.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include <chrono>
#include <fstream>
#include <thread>

#include "tests/profiler/agent_test.h"

namespace reprise::profiler::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

class SessionTest : public AgentTest {
 protected:
  // Runs steps until `condition` holds: the agent reads and reconnects in
  // steps.
  template <typename Condition>
  static bool Stepping(const Condition& condition) {
    const auto deadline =
        std::chrono::steady_clock::now() + std::chrono::seconds(30);
    for (uint64_t step = 0; std::chrono::steady_clock::now() < deadline;
         ++step) {
      reprise_step(step);
      if (condition()) return true;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return false;
  }
};

TEST_F(SessionTest, HelloSaysWhoIsThere) {
  setenv("RANK", "3", 1);
  setenv("LOCAL_RANK", "1", 1);
  setenv("WORLD_SIZE", "8", 1);
  setenv("SLURM_JOB_ID", "4711", 1);
  Collector collector(socket_, shelf_);

  reprise_config config = {};
  config.struct_size = sizeof config;
  config.abi = REPRISE_ABI;
  config.ring_slots = 8192;
  config.run_id = "my-run";
  config.labels = "name=train_resnet\nmodel=resnet";
  EXPECT_EQ(reprise_start(&config), REPRISE_DEGRADED);  // no CUPTI

  const Session session = collector.OnlySession();
  EXPECT_EQ(session.hello.abi, REPRISE_ABI);
  EXPECT_EQ(session.hello.ring_layout, REPRISE_RING_LAYOUT);
  EXPECT_EQ(session.hello.pid, static_cast<uint32_t>(getpid()));
  EXPECT_EQ(session.hello.rank, 3u);
  EXPECT_EQ(session.hello.local_rank, 1u);
  EXPECT_EQ(session.hello.world, 8u);
  EXPECT_EQ(session.hello.slots, 8192u);
  EXPECT_STREQ(session.hello.run_id, "my-run");
  EXPECT_EQ(session.labels,
            "name=train_resnet\nmodel=resnet\nslurm_job_id=4711\n");
  EXPECT_GT(session.hello.pid_start_ticks, 0u);
  EXPECT_EQ(strlen(session.hello.boot_id), 36u);
  EXPECT_GT(session.hello.realtime_ns, session.hello.monotonic_ns);
  // A UUID of version 7.
  ASSERT_EQ(strlen(session.hello.session_id), 36u);
  EXPECT_EQ(session.hello.session_id[14], '7');
  EXPECT_THAT("89ab", HasSubstr(std::string(1, session.hello.session_id[19])));
}

TEST_F(SessionTest, WithoutARunIdEverySessionIsARunOfItsOwn) {
  Collector collector(socket_, shelf_);

  Start();
  reprise_stop();
  Start();

  ASSERT_EQ(shelf_->sessions.size(), 2u);
  const Session& a = shelf_->sessions.begin()->second;
  const Session& b = shelf_->sessions.rbegin()->second;
  EXPECT_EQ(strlen(a.hello.run_id), 36u);
  EXPECT_STRNE(a.hello.run_id, b.hello.run_id);
  EXPECT_STRNE(a.hello.session_id, b.hello.session_id);
}

TEST_F(SessionTest, StartIsIdempotent) {
  Collector collector(socket_, shelf_);

  EXPECT_EQ(Start(), REPRISE_DEGRADED);
  EXPECT_EQ(Start(), REPRISE_DEGRADED);

  EXPECT_EQ(collector.OnlySession().hellos, 1);
}

TEST_F(SessionTest, SaysWhyThereIsNoCupti) {
  Collector collector(socket_, shelf_);
  Start();

  const reprise_caps caps = Capabilities();

  if (caps.driver_version == 0) {
    EXPECT_EQ(caps.cupti, 0u);
    EXPECT_STREQ(caps.why, "no NVIDIA driver (libcuda.so.1 not found)");
  } else {
    EXPECT_THAT(caps.why, HasSubstr("host clock"));
  }
  ASSERT_TRUE(
      Stepping([&] { return !collector.OnlySession().capabilities.empty(); }));
  EXPECT_THAT(collector.OnlySession().capabilities,
              HasSubstr("cupti=0 " + std::string(caps.why)));
}

TEST_F(SessionTest, StopDrainsAndSaysBye) {
  Collector collector(socket_, shelf_);
  Start();
  for (int i = 0; i < 1000; ++i) reprise_alloc(0, 1, 0, 0, REPRISE_ALLOC, 0);

  EXPECT_EQ(reprise_stop(), REPRISE_OK);

  ASSERT_TRUE(collector.WaitForSession([](const Session& session) {
    return session.closed == 1 && session.byes.size() == 1;
  }));
  const Session session = collector.OnlySession();
  EXPECT_EQ(session.byes[0].pushed, session.records.size());
  EXPECT_EQ(session.byes[0].dropped, 0u);
  EXPECT_EQ(session.Count(REPRISE_RECORD_ALLOC), 1000u);
  EXPECT_EQ(reprise_stop(), REPRISE_INERT);
  reprise_alloc(0, 1, 0, 0, REPRISE_ALLOC, 0);
  reprise_step(1);
}

TEST_F(SessionTest, ARefusedSessionIsOverAndSaysWhy) {
  Collector collector(socket_, shelf_,
                      {.refuse = "uid 1000 may not use this collector"});

  EXPECT_EQ(Start(), REPRISE_EREFUSED);

  EXPECT_STREQ(Capabilities().why, "uid 1000 may not use this collector");
  reprise_alloc(0, 1, 0, 0, REPRISE_ALLOC, 0);
  reprise_step(1);
  uint64_t graph = 0;
  reprise_want want = {};
  want.struct_size = sizeof want;
  EXPECT_EQ(reprise_graph_submit("{}", 2, &want, &graph), REPRISE_INERT);
  EXPECT_EQ(Capabilities().pushed, 0u);
}

TEST_F(SessionTest, WithoutACollectorStartIsInertAtOnceAndNamesThePlace) {
  const auto begin = std::chrono::steady_clock::now();

  EXPECT_EQ(Start(), REPRISE_INERT);

  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(1));
  EXPECT_EQ(Capabilities().why,
            "no collector at " + socket_ + ": No such file or directory");
  EXPECT_EQ(reprise_flush(0), REPRISE_PENDING);
}

TEST_F(SessionTest, ASilentCollectorHoldsStartForASecondAndNoLonger) {
  Collector collector(socket_, shelf_, {.silent = true});
  const auto begin = std::chrono::steady_clock::now();

  EXPECT_EQ(reprise_start(nullptr), REPRISE_INERT);

  const auto took = std::chrono::steady_clock::now() - begin;
  EXPECT_GE(took, std::chrono::milliseconds(990));
  EXPECT_THAT(Capabilities().why, HasSubstr("has not answered yet"));
}

TEST_F(SessionTest, ACollectorThatComesLaterGetsWhatTheRingKept) {
  EXPECT_EQ(Start(), REPRISE_INERT);
  reprise_op_begin(1, Intern("early"), 0, 0, 0, 0);
  reprise_op_end(1);
  Collector collector(socket_, shelf_);

  EXPECT_EQ(Start(), REPRISE_DEGRADED);  // tries to connect again at once
  ASSERT_EQ(reprise_flush(10000), REPRISE_OK);

  const Session session = collector.OnlySession();
  EXPECT_EQ(session.Count(REPRISE_RECORD_OP_BEGIN), 1u);
  EXPECT_EQ(session.names.size(), static_cast<size_t>(Intern("early")));
}

TEST_F(SessionTest, TheSecondStartMayNameAnotherSocket) {
  EXPECT_EQ(Start(), REPRISE_INERT);
  const std::string elsewhere = folder_ + "/elsewhere.sock";
  Collector collector(elsewhere, shelf_);

  reprise_config config = {};
  config.struct_size = sizeof config;
  config.socket_path = elsewhere.c_str();
  EXPECT_EQ(reprise_start(&config), REPRISE_DEGRADED);

  EXPECT_EQ(collector.OnlySession().hellos, 1);
}

TEST_F(SessionTest, FindsTheUsersSocketInTheRuntimeFolder) {
  unsetenv("REPRISE_SOCKET");
  setenv("XDG_RUNTIME_DIR", folder_.c_str(), 1);
  std::filesystem::create_directory(folder_ + "/reprise");
  Collector collector(folder_ + "/reprise/agent.sock", shelf_);

  EXPECT_EQ(Start(), REPRISE_DEGRADED);

  EXPECT_EQ(collector.OnlySession().hellos, 1);
}

TEST_F(SessionTest, FindsTheUsersSocketUnderTheTemporaryFolder) {
  unsetenv("REPRISE_SOCKET");
  setenv("TMPDIR", folder_.c_str(), 1);
  const std::string own = folder_ + "/reprise-" + std::to_string(geteuid());
  std::filesystem::create_directory(own);
  Collector collector(own + "/agent.sock", shelf_);

  EXPECT_EQ(Start(), REPRISE_DEGRADED);

  EXPECT_EQ(collector.OnlySession().hellos, 1);
}

TEST_F(SessionTest, DoesNotTrustAFolderOfSomebodyElse) {
  if (geteuid() != 0) GTEST_SKIP() << "needs root to make a foreign folder";
  unsetenv("REPRISE_SOCKET");
  setenv("TMPDIR", folder_.c_str(), 1);
  const std::string own = folder_ + "/reprise-0";
  std::filesystem::create_directory(own);
  Collector collector(own + "/agent.sock", shelf_);
  ASSERT_EQ(chown(own.c_str(), 12345, 12345), 0);

  EXPECT_EQ(Start(), REPRISE_INERT);

  EXPECT_THAT(Capabilities().why, HasSubstr("Operation not permitted"));
}

TEST_F(SessionTest, RejectsBadArgumentsWithAReason) {
  reprise_config config = {};
  EXPECT_EQ(reprise_start(&config), REPRISE_EINVAL);  // no struct_size
  config.struct_size = sizeof config;
  config.abi = 2;
  EXPECT_EQ(reprise_start(&config), REPRISE_EABI);
  config.abi = 0;
  config.ring_slots = 5000;
  EXPECT_EQ(reprise_start(&config), REPRISE_EINVAL);
  EXPECT_THAT(Capabilities().why, StartsWith("ring_slots: "));
  config.ring_slots = 0;
  const std::string too_long(200, 'x');
  config.run_id = too_long.c_str();
  EXPECT_EQ(reprise_start(&config), REPRISE_EINVAL);
  EXPECT_THAT(Capabilities().why, StartsWith("run_id: "));
  config.run_id = nullptr;
  config.socket_path = too_long.c_str();
  EXPECT_EQ(reprise_start(&config), REPRISE_EINVAL);
  EXPECT_THAT(Capabilities().why, StartsWith("socket_path: "));
}

TEST_F(SessionTest, ADaemonRestartLosesNothing) {
  auto collector = std::make_unique<Collector>(socket_, shelf_);
  Start(1u << 16);
  const uint32_t name = Intern("kept across restarts");
  uint64_t pushed = 0;
  const auto push = [&] {
    for (int i = 0; i < 1000; ++i, ++pushed)
      reprise_op_begin(pushed, name, 0, 0, 0, 0);
  };

  push();
  ASSERT_EQ(reprise_flush(10000), REPRISE_OK);
  collector.reset();  // closes all its connections at once
  push();
  reprise_step(1);  // notices
  push();
  EXPECT_EQ(Capabilities().dropped, 0u);
  // The new daemon knows only what it is sent after its start.
  shelf_->sessions.begin()->second.names.clear();
  collector = std::make_unique<Collector>(socket_, shelf_);
  ASSERT_TRUE(Stepping([&] { return collector->OnlySession().hellos == 2; }));
  push();
  ASSERT_EQ(reprise_flush(10000), REPRISE_OK);

  const Session session = collector->OnlySession();
  uint64_t next = 0;
  for (const reprise_slot& record : session.records)
    if (record.kind == REPRISE_RECORD_OP_BEGIN) {
      ASSERT_EQ(record.body.op.op, next);
      ++next;
    }
  EXPECT_EQ(next, pushed);
  EXPECT_EQ(session.names.at(name), "kept across restarts");
  EXPECT_FALSE(session.capabilities.empty());
}

TEST_F(SessionTest, ReconnectsAtMostOnceASecond) {
  auto collector = std::make_unique<Collector>(socket_, shelf_);
  Start();
  collector->CloseConnections();
  ASSERT_TRUE(Stepping([&] { return collector->OnlySession().hellos == 2; }));
  const auto second = std::chrono::steady_clock::now();
  collector->CloseConnections();
  ASSERT_TRUE(Stepping([&] { return collector->OnlySession().hellos == 3; }));

  EXPECT_GE(std::chrono::steady_clock::now() - second,
            std::chrono::milliseconds(900));
}

TEST_F(SessionTest, NoStepBlocksOnADaemonThatHangs) {
  Collector collector(socket_, shelf_);
  Start(4096);
  collector.SetReceive(false);
  collector.SetDrain(false);

  // More names than the queue holds, more records than the ring holds.
  uint64_t slowest_ns = 0;
  for (uint64_t i = 0; i < 3000; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    reprise_op_begin(i, Intern("hang " + std::to_string(i)), 0, 0, 0, 0);
    reprise_op_end(i);
    reprise_step(i);
    const auto took = std::chrono::steady_clock::now() - begin;
    slowest_ns = std::max(slowest_ns, static_cast<uint64_t>(took.count()));
  }
  RecordProperty("slowest_step_ns", std::to_string(slowest_ns));
  EXPECT_GT(Capabilities().dropped, 0u);
  collector.SetReceive(true);
  collector.SetDrain(true);
  ASSERT_TRUE(
      Stepping([&] { return collector.OnlySession().names.size() >= 3000; }));
}

TEST_F(SessionTest, AWindowFollowsCallsAndCommands) {
  Collector collector(socket_, shelf_);
  EXPECT_EQ(reprise_window_begin(0), REPRISE_INERT);
  Start();

  EXPECT_EQ(reprise_window_kinds(), 0u);
  EXPECT_EQ(reprise_window_begin(REPRISE_KIND_OPS | REPRISE_KIND_ALLOCS),
            REPRISE_OK);
  EXPECT_EQ(reprise_window_kinds(), 3u);
  EXPECT_EQ(reprise_pause(), REPRISE_OK);
  EXPECT_EQ(reprise_window_kinds(), 0u);
  EXPECT_EQ(reprise_resume(), REPRISE_OK);
  EXPECT_EQ(reprise_window_kinds(), 3u);
  EXPECT_EQ(reprise_window_end(), REPRISE_OK);
  EXPECT_EQ(reprise_window_kinds(), 0u);
  EXPECT_EQ(reprise_window_begin(REPRISE_KIND_KERNELS), REPRISE_DEGRADED);
  reprise_window_end();
  EXPECT_EQ(reprise_window_begin(64), REPRISE_EINVAL);

  collector.Send(REPRISE_MSG_COMMAND,
                 CommandBody(REPRISE_COMMAND_WINDOW_BEGIN, 1, /*steps=*/2));
  ASSERT_TRUE(Stepping([] { return reprise_window_kinds() == 1; }));
  reprise_step(1);
  EXPECT_EQ(reprise_window_kinds(), 1u);
  reprise_step(2);
  EXPECT_EQ(reprise_window_kinds(), 0u);
  collector.Send(REPRISE_MSG_COMMAND,
                 CommandBody(REPRISE_COMMAND_WINDOW_BEGIN));
  ASSERT_TRUE(Stepping([] { return reprise_window_kinds() == 7; }));
  collector.Send(REPRISE_MSG_COMMAND, CommandBody(REPRISE_COMMAND_PAUSE));
  ASSERT_TRUE(Stepping([] { return reprise_window_kinds() == 0; }));
  collector.Send(REPRISE_MSG_COMMAND, CommandBody(REPRISE_COMMAND_RESUME));
  ASSERT_TRUE(Stepping([] { return reprise_window_kinds() == 7; }));
  collector.Send(REPRISE_MSG_COMMAND, CommandBody(REPRISE_COMMAND_WINDOW_END));
  ASSERT_TRUE(Stepping([] { return reprise_window_kinds() == 0; }));
}

TEST_F(SessionTest, AWindowThatOpensBetweenTwoStepsHasAllOfItsSteps) {
  Collector collector(socket_, shelf_);
  Start();
  reprise_step(1);

  // A poll for a plan takes the command.
  collector.Send(REPRISE_MSG_COMMAND,
                 CommandBody(REPRISE_COMMAND_WINDOW_BEGIN, 7, /*steps=*/2));
  reprise_plan plan = {};
  plan.struct_size = sizeof plan;
  for (int polls = 0; polls < 10'000 && reprise_window_kinds() == 0; ++polls) {
    reprise_plan_poll(/*request_id=*/1, /*have_plan_id=*/0, &plan);
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  ASSERT_EQ(reprise_window_kinds(), 7u);

  reprise_step(2);
  EXPECT_EQ(reprise_window_kinds(), 7u);
  reprise_step(3);
  EXPECT_EQ(reprise_window_kinds(), 7u);
  reprise_step(4);
  EXPECT_EQ(reprise_window_kinds(), 0u);
}

TEST_F(SessionTest, UnknownMessagesAndLongerBodiesOfANewerCollectorAreFine) {
  Collector collector(socket_, shelf_);
  Start();

  collector.Send(99, "something new");
  collector.Send(REPRISE_MSG_COMMAND, CommandBody(77));
  collector.Send(REPRISE_MSG_COMMAND,
                 CommandBody(REPRISE_COMMAND_WINDOW_BEGIN, 2) + "appended");
  ASSERT_TRUE(Stepping([] { return reprise_window_kinds() == 2; }));

  EXPECT_EQ(collector.OnlySession().hellos, 1);
}

// Each packet breaks the protocol in a different way.
struct BadPacket {
  const char* name;
  std::string bytes;
};

std::string BadHeader(uint32_t magic, uint16_t type, uint16_t layout,
                      uint32_t size) {
  reprise_msg_header header = {magic, type, layout, size, 0};
  return std::string(reinterpret_cast<char*>(&header), sizeof header);
}

class BadPacketTest : public SessionTest,
                      public ::testing::WithParamInterface<BadPacket> {};

TEST_P(BadPacketTest, MakesTheAgentHangUp) {
  Collector collector(socket_, shelf_);
  Start();

  collector.SendPacket(GetParam().bytes);

  EXPECT_TRUE(Stepping([&] { return collector.OnlySession().closed == 1; }));
}

INSTANTIATE_TEST_SUITE_P(
    All, BadPacketTest,
    ::testing::Values(
        BadPacket{"magic", BadHeader(7, REPRISE_MSG_COMMAND, 1, 0)},
        BadPacket{"layout",
                  BadHeader(REPRISE_WIRE_MAGIC, REPRISE_MSG_COMMAND, 9, 0)},
        BadPacket{"size_lies",
                  BadHeader(REPRISE_WIRE_MAGIC, REPRISE_MSG_COMMAND, 1, 16)},
        BadPacket{"size_is_huge",
                  BadHeader(REPRISE_WIRE_MAGIC, REPRISE_MSG_COMMAND, 1, ~0u)},
        BadPacket{"short_header", "x"},
        BadPacket{"too_long", Message(99, std::string(40000, 'x'))},
        BadPacket{"short_command", Message(REPRISE_MSG_COMMAND, "abc")},
        BadPacket{"short_status", Message(REPRISE_MSG_PLAN_STATUS, "abc")},
        BadPacket{"status_text_lies",
                  [] {
                    std::string body = PlanStatusBody(1, 1, 1, "text");
                    body.resize(body.size() - 2);
                    return Message(REPRISE_MSG_PLAN_STATUS, body);
                  }()},
        BadPacket{"plan_without_fd",
                  Message(REPRISE_MSG_PLAN, PlanBody(1, 1, 1))},
        BadPacket{"second_welcome",
                  Message(REPRISE_MSG_WELCOME,
                          std::string(sizeof(reprise_msg_welcome), 1))}),
    [](const auto& test) { return test.param.name; });

TEST_F(SessionTest, SomethingThatIsNoCollectorIsNotBelieved) {
  Collector collector(socket_, shelf_, {.garbage = "HTTP/1.1 400 Bad Request"});

  EXPECT_EQ(Start(), REPRISE_INERT);

  EXPECT_THAT(Capabilities().why, HasSubstr("no collector"));
}

TEST_F(SessionTest, SurvivesSigpipeWithItsDefaultAction) {
  signal(SIGPIPE, SIG_DFL);
  auto collector = std::make_unique<Collector>(socket_, shelf_);
  Start();
  collector.reset();

  for (uint64_t i = 0; i < 10; ++i) {
    reprise_op_begin(i, Intern("pipe " + std::to_string(i)), 0, 0, 0, 0);
    reprise_step(i);
  }
  EXPECT_EQ(reprise_stop(), REPRISE_OK);
}

TEST_F(SessionTest, ASnapshotTravelsAsASealedMemfd) {
  Collector collector(socket_, shelf_);
  EXPECT_EQ(reprise_snapshot("x", 1), REPRISE_INERT);
  Start();
  const std::string json(300000, 'p');

  EXPECT_EQ(reprise_snapshot(json.data(), json.size()), REPRISE_OK);
  EXPECT_EQ(reprise_snapshot(nullptr, 1), REPRISE_EINVAL);
  EXPECT_EQ(reprise_snapshot(json.data(), (1u << 30) + 1), REPRISE_ETOOBIG);

  ASSERT_TRUE(collector.WaitForSession(
      [](const Session& session) { return session.snapshots.size() == 1; }));
  EXPECT_EQ(collector.OnlySession().snapshots[0], json);
}

TEST_F(SessionTest, AnInjectedLibraryAnnouncesItselfOnlyWithTheFirstStep) {
  Collector collector(socket_, shelf_);

  EXPECT_EQ(InitializeInjection(), 1);
  EXPECT_TRUE(shelf_->sessions.empty());
  ASSERT_TRUE(Stepping([&] { return Capabilities().pushed > 0; }));

  ASSERT_TRUE(collector.WaitForSession(
      [](const Session& session) { return session.hellos == 1; }));
}

TEST_F(SessionTest, AnInjectedLibraryGivesACollectorTimeToAnswer) {
  Collector collector(socket_, shelf_, {.silent = true});
  EXPECT_EQ(InitializeInjection(), 1);

  reprise_step(1);

  EXPECT_THAT(Capabilities().why, HasSubstr("has not answered yet"));
}

TEST_F(SessionTest, AnInjectedLibraryThatWasStartedByHandStaysStopped) {
  Collector collector(socket_, shelf_);
  EXPECT_EQ(InitializeInjection(), 1);
  Start();
  reprise_stop();

  for (uint64_t step = 0; step < 3; ++step) reprise_step(step);

  EXPECT_EQ(reprise_stop(), REPRISE_INERT);
  ASSERT_TRUE(collector.WaitFor(
      [](const Shelf& shelf) { return shelf.sessions.size() == 1; }));
}

TEST_F(SessionTest, ThreadsMayStartStopStepAndPushAtTheSameTime) {
  Collector collector(socket_, shelf_);
  std::atomic<bool> stop{false};
  std::vector<std::thread> threads;
  for (int t = 0; t < 2; ++t)
    threads.emplace_back([&] {
      while (!stop) {
        reprise_op_begin(1, Intern("busy"), 0, 0, 0, 0);
        reprise_alloc(1, 1, 0, 0, REPRISE_ALLOC, 0);
        reprise_op_end(1);
      }
    });
  threads.emplace_back([&] {
    for (uint64_t step = 0; !stop; ++step) reprise_step(step);
  });

  for (int i = 0; i < 20; ++i) {
    Start(i % 2 == 0 ? 4096 : 8192);
    reprise_stop();
  }
  stop = true;
  for (std::thread& thread : threads) thread.join();

  EXPECT_TRUE(collector.WaitFor([](const Shelf& shelf) {
    for (const auto& [id, session] : shelf.sessions)
      if (session.closed != 1) return false;
    return shelf.sessions.size() == 20;
  }));
}

TEST_F(SessionTest, ErrnoIsLeftAlone) {
  errno = 4242;
  Start();
  reprise_step(1);
  reprise_flush(1);
  reprise_stop();

  EXPECT_EQ(errno, 4242);
}

}  // namespace
}  // namespace reprise::profiler::testing
