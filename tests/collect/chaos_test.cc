// SPDX-License-Identifier: Apache-2.0
//
// Jobs with the real agent library and a collector in a separate process, with
// signals sent at bad moments. Every test ends by comparing complete sets of
// rows.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <numeric>
#include <set>
#include <thread>

#include "tests/collect/child.h"
#include "tests/collect/ingest_peer.h"
#include "tests/collect/temporary_folder.h"

namespace reprise::server {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

std::vector<uint64_t> Numbers(uint64_t first, uint64_t count) {
  std::vector<uint64_t> numbers(count);
  std::iota(numbers.begin(), numbers.end(), first);
  return numbers;
}

class ChaosTest : public testing::Test {
 protected:
  void SetUp() override {
    mkdir((folder_ / "data").c_str(), 0700);
    StartDaemon();
  }

  void StartDaemon(const std::string& tmpfs_kib = "") {
    std::vector<std::string> command{COLLECT_DAEMON, folder_ / "agent.sock",
                                     folder_ / "data/spool.db",
                                     peer_.address()};
    if (!tmpfs_kib.empty()) command.push_back(tmpfs_kib);
    daemon_ = Child(command);
    daemon_says_ = daemon_.ReadLine();
  }
  Child StartJob(const std::string& slots) {
    Child job({COLLECT_JOB, AGENT_LIBRARY, folder_ / "agent.sock", slots});
    EXPECT_EQ(job.ReadLine(), "started");
    return job;
  }

  // The records of the only session.
  Received Session() {
    const std::vector<std::string> ids = peer_.Sessions();
    return ids.empty() ? Received() : peer_.Of(ids[0]);
  }
  bool EventuallyEnded() {
    return Eventually([&] { return !Session().byes.empty(); });
  }

  TemporaryFolder folder_;
  IngestPeer peer_;
  Child daemon_;
  std::string daemon_says_;
};

TEST_F(ChaosTest, AJobKilledAfterPushingKeepsEveryRecord) {
  Child job = StartJob("65536");
  EXPECT_EQ(job.Ask("work"), "ok");
  EXPECT_EQ(job.Ask("push 0 30000 0"), "ok");
  job.Tell("kill");
  EXPECT_EQ(job.Wait(), -SIGKILL);

  ASSERT_TRUE(EventuallyEnded());
  EXPECT_EQ(Session().addresses, Numbers(0, 30'000));
  EXPECT_TRUE(Session().byes[0].killed());
  EXPECT_EQ(Session().byes[0].torn(), 0u);
}

// Kills fifty jobs, each at a random point of its work.
TEST_F(ChaosTest, WhatAKilledJobHadPushedIsThereOnceAndInOrder) {
  std::set<std::string> known;
  for (int kill = 0; kill < 50; ++kill) {
    SCOPED_TRACE("kill " + std::to_string(kill));
    Child job = StartJob("65536");
    job.Tell("push 0 60000 " + std::to_string(1 + kill % 7 * 200));
    // Waits until the session exists, so that the kill lands between its first
    // record and its last.
    std::string id;
    Eventually([&] {
      for (const std::string& session : peer_.Sessions()) {
        if (!known.contains(session)) id = session;
      }
      return !id.empty() && (kill % 3 == 0 || !peer_.Of(id).addresses.empty());
    });
    job.Signal(SIGKILL);
    EXPECT_EQ(job.Wait(), -SIGKILL);
    ASSERT_FALSE(id.empty());
    known.insert(id);
    ASSERT_TRUE(Eventually([&] { return !peer_.Of(id).byes.empty(); }));

    const Received got = peer_.Of(id);
    EXPECT_EQ(got.addresses, Numbers(0, got.addresses.size()));
    EXPECT_TRUE(got.byes[0].killed());
    EXPECT_EQ(got.byes[0].dropped(), 0u);
    EXPECT_LE(got.byes[0].torn(), 1u);  // it had one thread only
    // Every published record arrived, of every kind.
    uint64_t records = 0;
    for (const auto& [kind, count] : got.kinds) records += count;
    EXPECT_EQ(records + got.byes[0].torn(), got.byes[0].pushed());
  }
}

TEST_F(ChaosTest, AJobThatStopsIsNotKilled) {
  Child job = StartJob("65536");
  EXPECT_EQ(job.Ask("push 0 1000 0"), "ok");
  job.Tell("stop");
  EXPECT_EQ(job.Wait(), 0);

  ASSERT_TRUE(EventuallyEnded());
  EXPECT_EQ(Session().addresses, Numbers(0, 1000));
  EXPECT_FALSE(Session().byes[0].killed());
}

TEST_F(ChaosTest, AKilledDaemonLosesAndDoublesNothing) {
  Child job = StartJob("262144");
  constexpr uint64_t kRecords = 150'000;  // all fit in the ring
  job.Tell("push 0 " + std::to_string(kRecords) + " 30");

  for (int kills = 0; kills < 20; ++kills) {
    const uint64_t before = Session().addresses.size();
    // Waits for progress, so that the kill lands in the middle of the work.
    Eventually([&] { return Session().addresses.size() > before; }, 3);
    daemon_.Signal(SIGKILL);
    daemon_.Wait();
    StartDaemon();
    ASSERT_EQ(daemon_says_, "ready");
  }
  EXPECT_EQ(job.ReadLine(), "ok");
  EXPECT_EQ(job.Ask("work"), "ok");
  job.Tell("stop");
  EXPECT_EQ(job.Wait(), 0);

  ASSERT_TRUE(EventuallyEnded());
  const Received got = Session();
  EXPECT_EQ(got.addresses.size(), kRecords);
  EXPECT_EQ(got.addresses, Numbers(0, kRecords));
  EXPECT_EQ(got.byes[0].dropped(), 0u);
  EXPECT_THAT(got.lost, IsEmpty());
}

TEST_F(ChaosTest, AKilledServerAndAKilledDaemonTogetherLoseNothing) {
  Child job = StartJob("262144");
  job.Tell("push 0 100000 30");
  for (int round = 0; round < 4; ++round) {
    peer_.Suspend();
    daemon_.Signal(SIGKILL);
    daemon_.Wait();
    StartDaemon();
    ASSERT_EQ(daemon_says_, "ready");
    peer_.Resume();
  }
  EXPECT_EQ(job.ReadLine(), "ok");
  job.Tell("stop");
  EXPECT_EQ(job.Wait(), 0);
  // The job may have ended without BYE if no daemon was connected just then;
  // whatever it pushed before it lost the connection must arrive all the same.
  ASSERT_TRUE(EventuallyEnded());
  const auto got = Session().addresses;
  EXPECT_EQ(got, Numbers(0, got.size()));
}

TEST_F(ChaosTest, AJobThatDiedWhileNoDaemonWasThereIsEndedByTheNextOne) {
  Child job = StartJob("65536");
  EXPECT_EQ(job.Ask("push 0 1000 0"), "ok");
  EXPECT_EQ(job.Ask("work"), "ok");
  daemon_.Signal(SIGKILL);
  daemon_.Wait();
  job.Tell("kill");
  EXPECT_EQ(job.Wait(), -SIGKILL);

  StartDaemon();

  ASSERT_TRUE(EventuallyEnded());
  EXPECT_EQ(Session().addresses, Numbers(0, 1000));
  EXPECT_TRUE(Session().byes[0].killed());
}

TEST_F(ChaosTest, ADaemonThatHangsCostsOnlyCountedAndDatedRecords) {
  Child job = StartJob("4096");
  EXPECT_EQ(job.Ask("work"), "ok");
  daemon_.Signal(SIGSTOP);
  EXPECT_EQ(job.Ask("push 0 20000 0"), "ok");
  daemon_.Signal(SIGCONT);
  EXPECT_EQ(job.Ask("work"), "ok");
  EXPECT_EQ(job.Ask("push 20000 100 0"), "ok");
  job.Tell("stop");
  EXPECT_EQ(job.Wait(), 0);

  ASSERT_TRUE(EventuallyEnded());
  const Received got = Session();
  const uint64_t lost =
      std::accumulate(got.losses.begin(), got.losses.end(), uint64_t{0});
  EXPECT_GT(lost, 10'000u);
  EXPECT_EQ(got.addresses.size() + lost, 20'100u);
  EXPECT_EQ(got.dropped_before, lost);
  EXPECT_EQ(got.byes[0].dropped(), lost);
  EXPECT_TRUE(std::is_sorted(got.addresses.begin(), got.addresses.end()));
}

TEST_F(ChaosTest, ForkedChildrenNeitherHangNorDisturbTheSession) {
  Child job = StartJob("262144");
  EXPECT_EQ(job.Ask("work"), "ok");
  EXPECT_EQ(job.Ask("fork 100"), "ok");
  EXPECT_EQ(job.Ask("clone_push 0 50000"), "ok");
  job.Tell("stop");
  EXPECT_EQ(job.Wait(), 0);

  ASSERT_TRUE(EventuallyEnded());
  EXPECT_EQ(Session().addresses, Numbers(0, 50'000));
  EXPECT_THAT(peer_.Sessions(), SizeIs(1));
}

TEST_F(ChaosTest, APlanReachesAJobThroughTheRealAgent) {
  peer_.planner = [](const v1::PlanRequest& request, const v1::StepGraph& graph,
                     v1::Plan* plan) {
    plan->set_plan_id("0123456789abcdef");
    plan->set_graph_id(request.graph_id());
    plan->set_feasible(graph.name() == "toy");
    return grpc::Status::OK;
  };
  Child job = StartJob("4096");

  EXPECT_EQ(job.Ask(R"(graph {"name":"toy"})"), "OK 0123456789abcdef");
  EXPECT_THAT(job.Ask(R"(graph {"name":7,"ops":3})"), HasSubstr("no: "));
}

TEST_F(ChaosTest, AFullDiskStopsTheSpoolAndLosesNothing) {
  daemon_.Signal(SIGKILL);
  daemon_.Wait();
  peer_.deaf = true;  // so that nothing leaves the spool
  StartDaemon("4096");
  if (daemon_says_ != "ready") {
    GTEST_SKIP() << "no small file system here: " << daemon_says_;
  }
  Child job = StartJob("262144");
  EXPECT_EQ(job.Ask("work"), "ok");

  EXPECT_EQ(daemon_.Ask("fill"), "ok");
  EXPECT_EQ(job.Ask("push 0 100000 0"), "ok");
  std::string degraded;
  EXPECT_TRUE(Eventually([&] {
    degraded = daemon_.Ask("degraded");
    return degraded.find("spool:") != std::string::npos;
  }));
  EXPECT_THAT(degraded, HasSubstr("records wait in the rings"));

  peer_.deaf = false;
  peer_.Suspend();
  peer_.Resume();
  EXPECT_EQ(daemon_.Ask("free"), "ok");
  EXPECT_TRUE(Eventually([&] { return daemon_.Ask("degraded").empty(); }))
      << daemon_.Ask("degraded");
  job.Tell("stop");
  EXPECT_EQ(job.Wait(), 0);
  ASSERT_TRUE(EventuallyEnded());
  EXPECT_EQ(Session().addresses, Numbers(0, 100'000));
}

}  // namespace
}  // namespace reprise::server
