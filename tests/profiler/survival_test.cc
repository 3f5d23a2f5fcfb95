// Kills and forks, which determined the agent's design.
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include <thread>

#include "tests/profiler/agent_test.h"

namespace reprise::profiler::testing {
namespace {

class SurvivalTest : public AgentTest {
 protected:
  // Returns the exit code of a child, or minus its signal.
  static int Join(pid_t child) {
    int status = 0;
    EXPECT_EQ(waitpid(child, &status, 0), child);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
  }

  // Returns whether the agent is inert, as in a child that did not start a
  // session.
  static bool IsInert() {
    reprise_step(1);
    reprise_op_begin(1, 1, 0, 0, 0, 0);
    reprise_alloc(1, 1, 0, 0, REPRISE_ALLOC, 0);
    reprise_op_end(1);
    reprise_caps caps = {};
    caps.struct_size = sizeof caps;
    uint64_t graph = 0;
    reprise_want want = {};
    want.struct_size = sizeof want;
    reprise_plan plan = {};
    plan.struct_size = sizeof plan;
    return reprise_capabilities(&caps) == REPRISE_INERT && caps.pushed == 0 &&
           reprise_flush(1000) == REPRISE_INERT &&
           reprise_graph_submit("{}", 2, &want, &graph) == REPRISE_INERT &&
           reprise_plan_wait(1, 0, 1000, &plan) == REPRISE_INERT &&
           reprise_stop() == REPRISE_INERT;
  }

  // Runs a session of `n` records in the child. Returns its exit code.
  static int OwnSession(uint64_t n) {
    if (Start(4096) != REPRISE_DEGRADED) return 1;
    const uint32_t name = Intern("of a child");
    for (uint64_t i = 0; i < n; ++i) reprise_op_begin(i, name, 0, 0, 0, 0);
    if (reprise_flush(20000) != REPRISE_OK) return 2;
    return reprise_stop() == REPRISE_OK ? 0 : 3;
  }
};

TEST_F(SurvivalTest, RecordsOutliveASigkilledTrainer) {
  constexpr uint64_t kPushed = 30000;
  Collector collector(socket_, shelf_, {.drain = false});

  const pid_t trainer = fork();
  if (trainer == 0) {
    Start(1u << 15);
    for (uint64_t i = 0; i < kPushed; ++i)
      reprise_alloc(i, 1, 0, 0, REPRISE_ALLOC, 0);
    kill(getpid(), SIGKILL);
  }
  EXPECT_EQ(Join(trainer), -SIGKILL);
  collector.SetDrain(true);

  ASSERT_TRUE(collector.WaitForSession(
      [](const Session& session) { return session.closed == 1; }));
  const Session session = collector.OnlySession();
  EXPECT_EQ(session.Count(REPRISE_RECORD_ALLOC), kPushed);
  EXPECT_TRUE(session.byes.empty());
}

TEST_F(SurvivalTest, AnIdleParentsForksAreInert) {
  Collector collector(socket_, shelf_);
  Start();

  for (int i = 0; i < 100; ++i) {
    const pid_t child = fork();
    if (child == 0) _exit(IsInert() ? 0 : 1);
    ASSERT_EQ(Join(child), 0);
  }
  reprise_alloc(1, 1, 0, 0, REPRISE_ALLOC, 0);
  ASSERT_EQ(reprise_flush(10000), REPRISE_OK);

  const Session session = collector.OnlySession();
  EXPECT_EQ(session.Count(REPRISE_RECORD_ALLOC), 1u);
  EXPECT_EQ(session.hellos, 1);
}

TEST_F(SurvivalTest, ForksUnderLoadLoseNothingAndHangNobody) {
  constexpr uint64_t kChildRecords = 500;
  constexpr int kForks = 300;
  Collector collector(socket_, shelf_);
  Start(1u << 18);
  std::atomic<bool> stop{false};
  std::atomic<uint64_t> pushed{0};
  std::vector<std::thread> writers;
  for (int w = 0; w < 2; ++w)
    writers.emplace_back([&] {
      while (!stop) {
        for (int i = 0; i < 50; ++i, ++pushed)
          reprise_op_begin(1, Intern("load " + std::to_string(i)), 0, 0, 0, 0);
        // Limits the load to what one collector thread can read.
        std::this_thread::sleep_for(std::chrono::milliseconds(2));
      }
    });
  writers.emplace_back([&] {
    for (uint64_t step = 0; !stop; ++step) {
      reprise_step(step);
      reprise_flush(1);
    }
  });

  // Every second child starts its own session.
  for (int i = 0; i < kForks; ++i) {
    const pid_t child = fork();
    if (child == 0)
      _exit(i % 2 == 0 ? (IsInert() ? 0 : 100) : OwnSession(kChildRecords));
    EXPECT_EQ(Join(child), 0) << "child " << i;
  }
  stop = true;
  for (std::thread& writer : writers) writer.join();
  ASSERT_EQ(reprise_flush(30000), REPRISE_OK);

  ASSERT_TRUE(collector.WaitFor([&](const Shelf& shelf) {
    size_t byes = 0;
    for (const auto& [id, session] : shelf.sessions)
      byes += session.byes.size();
    return byes == kForks / 2;
  }));
  std::lock_guard lock(shelf_->mutex);
  EXPECT_EQ(shelf_->sessions.size(), 1u + kForks / 2);
  std::string run;
  for (const auto& [id, session] : shelf_->sessions) {
    EXPECT_EQ(session.hellos, 1);
    if (run.empty()) run = session.hello.run_id;
    EXPECT_EQ(session.hello.run_id, run);  // parent and children share one run
    const uint64_t begun = session.Count(REPRISE_RECORD_OP_BEGIN);
    if (session.hello.pid == static_cast<uint32_t>(getpid())) {
      EXPECT_EQ(begun, pushed.load());
      EXPECT_EQ(session.Lost(), 0u);
    } else {
      EXPECT_EQ(begun, kChildRecords);
      EXPECT_EQ(session.Lost(), 0u);
      EXPECT_TRUE(session.names_came_first);
      for (const reprise_slot& record : session.records)
        EXPECT_EQ(record.thread, session.hello.pid);
    }
  }
}

TEST_F(SurvivalTest, AChildMayHaveASessionWhileTheParentIsIdle) {
  Collector collector(socket_, shelf_);
  Start();
  Intern("an id that only the parent knows");

  for (int i = 0; i < 100; ++i) {
    const pid_t child = fork();
    if (child == 0) _exit(OwnSession(100));
    ASSERT_EQ(Join(child), 0);
  }

  EXPECT_TRUE(collector.WaitFor(
      [](const Shelf& shelf) { return shelf.sessions.size() == 101; }));
}

TEST_F(SurvivalTest, AWorkerDoesNotHoldItsParentsSocketOpen) {
  Collector collector(socket_, shelf_);
  int gate[2];
  ASSERT_EQ(pipe(gate), 0);

  // The trainer forks a worker that outlives it.
  const pid_t trainer = fork();
  if (trainer == 0) {
    close(gate[1]);
    Start();
    if (fork() == 0) {
      char byte;
      while (read(gate[0], &byte, 1) < 0) {
      }
      _exit(0);
    }
    kill(getpid(), SIGKILL);
  }
  close(gate[0]);
  EXPECT_EQ(Join(trainer), -SIGKILL);

  EXPECT_TRUE(collector.WaitForSession(
      [](const Session& session) { return session.closed == 1; }));
  close(gate[1]);
}

TEST_F(SurvivalTest, AChildOfARawCloneIsInertToo) {
  Collector collector(socket_, shelf_);
  Start();

  // No fork handler runs here: only the page that the kernel wipes protects the
  // child.
  const pid_t child = static_cast<pid_t>(
      syscall(SYS_clone, SIGCHLD, nullptr, nullptr, nullptr, nullptr));
  if (child == 0) {
    reprise_alloc(1, 1, 0, 0, REPRISE_ALLOC, 0);
    reprise_step(1);
    _exit(reprise_flush(0) == REPRISE_INERT ? 0 : 1);
  }

  EXPECT_EQ(Join(child), 0);
  ASSERT_EQ(reprise_flush(10000), REPRISE_OK);
  EXPECT_EQ(collector.OnlySession().Count(REPRISE_RECORD_ALLOC), 0u);
}

}  // namespace
}  // namespace reprise::profiler::testing
