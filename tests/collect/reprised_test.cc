// SPDX-License-Identifier: Apache-2.0
//
// End to end with nothing replaced: a job with the real agent library, reprised
// and its store. What the store finally holds is compared record by record with
// what the job pushed.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <numeric>

#include "profiler/include/reprise_wire.h"
#include "reprise/v1/ingest.pb.h"
#include "reprise/v1/query.pb.h"
#include "server/store/database.h"
#include "tests/collect/child.h"
#include "tests/collect/ingest_peer.h"
#include "tests/collect/temporary_folder.h"

namespace reprise::server {
namespace {

std::vector<uint64_t> Numbers(uint64_t first, uint64_t count) {
  std::vector<uint64_t> numbers(count);
  std::iota(numbers.begin(), numbers.end(), first);
  return numbers;
}

class ReprisedTest : public testing::Test {
 protected:
  void SetUp() override { StartDaemon(); }

  void StartDaemon() {
    daemon_ = Child({REPRISED, "--listen", "127.0.0.1:0", "--data-dir",
                     folder_ / "data", "--agent-socket", folder_ / "agent.sock",
                     "--log-level", "warning"});
  }
  void KillDaemon() {
    daemon_.Signal(SIGKILL);
    daemon_.Wait();
  }
  Child StartJob(const std::string& slots) {
    Child job({COLLECT_JOB, AGENT_LIBRARY, folder_ / "agent.sock", slots});
    EXPECT_EQ(job.ReadLine(), "started");
    return job;
  }

  // Returns one number from the store, or -1 while there is none.
  int64_t Ask(const std::string& sql) {
    auto database = Database::Open(folder_ / "data/reprise.db");
    if (!database.ok()) return -1;
    auto statement = database->Prepare(sql);
    if (!statement.ok()) return -1;
    auto row = statement->Step();
    return row.ok() && *row ? statement->Int(0) : -1;
  }
  bool EventuallyRunIs(v1::RunState state) {
    return Eventually([&] { return Ask("SELECT state FROM runs") == state; });
  }

  // Returns the addresses of all ALLOC records, in the order of their chunks.
  std::vector<uint64_t> StoredAddresses() {
    std::vector<uint64_t> addresses;
    auto database = Database::Open(folder_ / "data/reprise.db");
    EXPECT_TRUE(database.ok());
    auto all = database->Prepare(
        "SELECT body FROM chunks ORDER BY session_id, producer_epoch, seq");
    EXPECT_TRUE(all.ok()) << all.status().message();
    for (auto row = all->Step(); row.ok() && *row; row = all->Step()) {
      v1::Columns columns;
      EXPECT_TRUE(columns.ParseFromString(std::string(all->Bytes(0))));
      for (int i = 0; i < columns.kind_size(); ++i) {
        if (columns.kind(i) != REPRISE_RECORD_ALLOC) continue;
        addresses.push_back(columns.ptr_size() ? columns.ptr(i) : 0);
      }
    }
    return addresses;
  }

  TemporaryFolder folder_;
  Child daemon_;
};

TEST_F(ReprisedTest, StoresAllThatAKilledJobHadPushed) {
  Child job = StartJob("65536");
  EXPECT_EQ(job.Ask("work"), "ok");
  EXPECT_EQ(job.Ask("push 0 40000 0"), "ok");
  job.Tell("kill");
  EXPECT_EQ(job.Wait(), -SIGKILL);

  ASSERT_TRUE(EventuallyRunIs(v1::RUN_STATE_KILLED));
  EXPECT_EQ(StoredAddresses(), Numbers(0, 40'000));
}

TEST_F(ReprisedTest, LosesAndDoublesNothingWhenItIsKilledAgainAndAgain) {
  Child job = StartJob("262144");
  constexpr uint64_t kRecords = 150'000;
  job.Tell("push 0 " + std::to_string(kRecords) + " 30");
  for (int kills = 0; kills < 6; ++kills) {
    const int64_t before = Ask("SELECT records FROM runs");
    Eventually([&] { return Ask("SELECT records FROM runs") > before; }, 3);
    KillDaemon();
    StartDaemon();
  }
  EXPECT_EQ(job.ReadLine(), "ok");
  EXPECT_EQ(job.Ask("work"), "ok");
  job.Tell("stop");
  EXPECT_EQ(job.Wait(), 0);

  ASSERT_TRUE(EventuallyRunIs(v1::RUN_STATE_FINISHED));
  EXPECT_EQ(StoredAddresses(), Numbers(0, kRecords));
  EXPECT_EQ(Ask("SELECT dropped + lost_chunks FROM runs"), 0);
}

TEST_F(ReprisedTest, CountsWhatTheRingCouldNotHoldWhileItHung) {
  Child job = StartJob("4096");
  EXPECT_EQ(job.Ask("work"), "ok");
  daemon_.Signal(SIGSTOP);
  EXPECT_EQ(job.Ask("push 0 20000 0"), "ok");
  daemon_.Signal(SIGCONT);
  EXPECT_EQ(job.Ask("work"), "ok");
  job.Tell("stop");
  EXPECT_EQ(job.Wait(), 0);

  ASSERT_TRUE(EventuallyRunIs(v1::RUN_STATE_FINISHED));
  const auto stored = static_cast<int64_t>(StoredAddresses().size());
  EXPECT_EQ(stored + Ask("SELECT dropped FROM runs"), 20'000);
}

TEST_F(ReprisedTest, LeavesNothingBehindInItsSpoolOnACleanStop) {
  Child job = StartJob("65536");
  EXPECT_EQ(job.Ask("work"), "ok");
  EXPECT_EQ(job.Ask("push 0 20000 0"), "ok");
  job.Tell("stop");
  EXPECT_EQ(job.Wait(), 0);
  daemon_.Signal(SIGTERM);
  EXPECT_EQ(daemon_.Wait(), 0);

  EXPECT_EQ(StoredAddresses(), Numbers(0, 20'000));
  auto spool = Database::Open(folder_ / "data/spool.db");
  ASSERT_TRUE(spool.ok());
  for (const char* table : {"sessions", "chunks", "defs"}) {
    auto count = spool->Prepare(std::string("SELECT count(*) FROM ") + table);
    ASSERT_TRUE(count.ok());
    ASSERT_TRUE(count->Step().ok());
    EXPECT_EQ(count->Int(0), 0) << table;
  }
}

}  // namespace
}  // namespace reprise::server
