// SPDX-License-Identifier: Apache-2.0
#include "server/store/store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <string>

#include "server/net/address.h"
#include "server/service/memory/memory_curve.h"
#include "server/store/chunk_rows.h"
#include "server/store/migrate.h"
#include "server/store/plan_rows.h"
#include "server/store/run_rows.h"
#include "tests/server/server_harness.h"

namespace reprise::server {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// ---- Migrations ----

TEST(MigrateTest, AppliesOnlyWhatAFileLacks) {
  const TemporaryFolder folder;
  StatusOr<Database> database = Database::Open(folder.path() + "/a.db");
  ASSERT_TRUE(database.ok());
  const Migration first{1, "0001_a", "CREATE TABLE a (x)"};
  const Migration second{2, "0002_b", "CREATE TABLE b (x); DROP TABLE a"};
  const Migration one[] = {first};
  const Migration two[] = {first, second};
  ASSERT_TRUE(Migrate(*database, one).ok());

  ASSERT_TRUE(Migrate(*database, two).ok());
  ASSERT_TRUE(Migrate(*database, two).ok());

  EXPECT_EQ(*database->UserVersion(), 2);
  EXPECT_TRUE(database->Prepare("SELECT * FROM b").ok());
  EXPECT_FALSE(database->Prepare("SELECT * FROM a").ok());
}

TEST(MigrateTest, LeavesTheOldVersionWhenAMigrationFails) {
  const TemporaryFolder folder;
  StatusOr<Database> database = Database::Open(folder.path() + "/a.db");
  ASSERT_TRUE(database.ok());
  const Migration bad[] = {
      {1, "0001_bad", "CREATE TABLE a (x); SELECT nothing"}};

  const Status status = Migrate(*database, bad);

  EXPECT_THAT(status.message(), HasSubstr("0001_bad"));
  EXPECT_EQ(*database->UserVersion(), 0);
  EXPECT_FALSE(database->Prepare("SELECT * FROM a").ok());
}

TEST(MigrateTest, RefusesAFileOfANewerVersion) {
  const TemporaryFolder folder;
  StatusOr<Database> database = Database::Open(folder.path() + "/a.db");
  ASSERT_TRUE(database.ok());
  ASSERT_TRUE(database->Execute("PRAGMA user_version=999").ok());

  const Status status = Migrate(*database, Migrations());

  EXPECT_EQ(status.code(), Code::kFailedPrecondition);
  EXPECT_THAT(status.message(), HasSubstr("schema 999"));
}

TEST(MigrateTest, RefusesAFileOfBeforeTheFirstReleaseAndLeavesItAsItIs) {
  for (const int version : {1, 2, 3, 4, 5, 6}) {
    const TemporaryFolder folder;
    StatusOr<Database> database = Database::Open(folder.path() + "/a.db");
    ASSERT_TRUE(database.ok());
    ASSERT_TRUE(database->Execute("CREATE TABLE runs (run_id TEXT)").ok());
    ASSERT_TRUE(database->SetUserVersion(version).ok());

    const Status status = Migrate(*database, Migrations());

    EXPECT_EQ(status.code(), Code::kFailedPrecondition);
    EXPECT_THAT(status.message(), HasSubstr("move it away"));
    EXPECT_EQ(*database->UserVersion(), version);
    EXPECT_FALSE(database->Prepare("SELECT * FROM sessions").ok());
  }
}

// ---- Store ----

TEST(StoreTest, RefusesAFileThatIsNoDatabase) {
  const TemporaryFolder folder;
  std::ofstream(folder.path() + "/a.db") << std::string(8192, 'x');

  const auto store = Store::Open({.path = folder.path() + "/a.db"});

  EXPECT_EQ(store.status().code(), Code::kDataLoss);
}

std::vector<std::string> SetAsideIn(const std::string& folder) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    const std::string name = entry.path().filename();
    if (name.find(".damaged-") == std::string::npos) continue;
    names.push_back(name.substr(0, name.find('-')));
  }
  std::sort(names.begin(), names.end());
  return names;
}

void Overwrite(const std::string& path, std::streamoff at, int bytes) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  ASSERT_TRUE(file.is_open()) << path;
  file.seekp(at);
  file << std::string(static_cast<size_t>(bytes), 'x');
}

// Damage to the first page is seen at once: it holds the schema. A page in the
// middle is not checked until it is read.
TEST(StoreTest, ADamagedFileIsKeptAndADaemonStartsAllTheSame) {
  TestServer server;
  const std::string data = server.folder() + "/data";
  (void)server.PutGraph(SmallGraph(), "first");
  server.Stop();
  Overwrite(data + "/reprise.db", 3 * 4096, 4096);
  Overwrite(data + "/spool.db", 0, 4096);

  server.Start();

  EXPECT_THAT(SetAsideIn(data),
              ElementsAre("reprise.db.damaged", "spool.db.damaged"));
  (void)server.PutGraph(SmallGraph(), "second");
  EXPECT_EQ(server.GetRun("second").run_id(), "second");
}

TEST(StoreTest, AFileWithoutItsTablesIsDamaged) {
  const TemporaryFolder folder;
  const std::string path = folder.path() + "/a.db";
  {
    const auto store = Store::Open({.path = path});
    ASSERT_TRUE(store.ok());
  }
  StatusOr<Database> database = Database::Open(path);
  ASSERT_TRUE(database->Execute("DROP TABLE moments").ok());

  const auto store = Store::Open({.path = path});

  EXPECT_EQ(store.status().code(), Code::kDataLoss);
  EXPECT_THAT(store.status().message(), HasSubstr("moments is missing"));
}

TEST(StoreTest, KeepsServingWhenTheDiskIsFullAndRecovers) {
  const TemporaryFolder folder;
  auto opened = Store::Open({.path = folder.path() + "/a.db",
                             .max_pages = 60,
                             .degraded_for = std::chrono::seconds(0)});
  ASSERT_TRUE(opened.ok()) << opened.status().message();
  Store& store = **opened;
  const auto add = [&](size_t bytes) {
    return store.Write([&](Database& db) -> Status {
      v1::StepGraph graph;
      graph.set_name(std::string(bytes, 'x'));
      return SaveGraph(db, "0000000000000001", graph, 1).status();
    });
  };

  const Status full = add(1 << 20);
  EXPECT_EQ(full.code(), Code::kResourceExhausted);
  EXPECT_THAT(store.degraded(), HasSubstr("full"));
  EXPECT_TRUE(
      store.Read([](Database& db) -> Status { return CountRuns(db).status(); })
          .ok());

  EXPECT_TRUE(add(10).ok());
  EXPECT_EQ(store.degraded(), "");
}

TEST(StoreTest, AReaderOpensWhileSomebodyWrites) {
  const TemporaryFolder folder;
  auto opened = Store::Open({.path = folder.path() + "/a.db"});
  ASSERT_TRUE(opened.ok()) << opened.status().message();
  Store& store = **opened;

  // The read opens the first reader while the write lock is held.
  const Status status = store.Write([&](Database& db) -> Status {
    RETURN_IF_ERROR(EnsureRun(db, "abc", 1));
    return store.Read([](Database& reader) -> Status {
      ASSIGN_OR_RETURN(const int64_t runs, CountRuns(reader));
      EXPECT_EQ(runs, 0);
      return OkStatus();
    });
  });

  EXPECT_TRUE(status.ok()) << status.message();
}

// ---- Small pure parts ----

TEST(AddressTest, KnowsWhatOnlyThisMachineReaches) {
  EXPECT_EQ(ParseAddress("--listen", "localhost:80")->Text(), "127.0.0.1:80");
  EXPECT_EQ(ParseAddress("--listen", "[::1]:0")->Text(), "[::1]:0");
  for (const char* text : {"127.1.2.3:7070", "localhost:1", "[::1]:1"}) {
    EXPECT_TRUE(IsLoopback(*ParseAddress("--listen", text))) << text;
  }
  for (const char* text :
       {"0.0.0.0:7070", "192.168.0.1:1", "[::]:1", "[::ffff:127.0.0.1]:1"}) {
    EXPECT_FALSE(IsLoopback(*ParseAddress("--listen", text))) << text;
  }
  EXPECT_THAT(ParseAddress("--listen", "example.com:80").status().message(),
              HasSubstr("is not an address in numbers"));
  for (const char* text : {"", "127.0.0.1", "127.0.0.1:", ":80", "7070",
                           "127.0.0.1:70000", "127.0.0.1:7x", "[::1"}) {
    EXPECT_THAT(ParseAddress("--listen", text).status().message(),
                HasSubstr("cannot read"))
        << text;
  }
}

TEST(AddressTest, RefusesHostsThatAreNotLoopback) {
  for (const char* host :
       {"localhost", "LOCALHOST:7070", "127.0.0.1:1", "[::1]:7070", "[::1]"}) {
    EXPECT_TRUE(IsLoopbackHost(host)) << host;
  }
  for (const char* host :
       {"", "evil.example", "localhost.evil.example",
        "127.0.0.1.evil.example:80", "127.0.0.1:80:90", "[::2]", "10.0.0.1"}) {
    EXPECT_FALSE(IsLoopbackHost(host)) << host;
  }
}

// ---- Fold ----

TEST(FoldTest, KeepsAPeakThatLastsNoTime) {
  // 5 bytes throughout, except for one sample of 100 at 777,777 of a million
  // ns.
  const MemoryCurve points({0, 777'777, 777'777}, {5, 100, 5});

  const v1::Curve curve = points.Draw(1'000'000, {.columns = 10});

  EXPECT_EQ(curve.peak_bytes(), 100);
  EXPECT_EQ(curve.peak_at_ns(), 777'777);
  ASSERT_EQ(curve.max_bytes_size(), 10);
  EXPECT_EQ(curve.max_bytes(7), 100);
  EXPECT_EQ(curve.min_bytes(7), 5);
  EXPECT_EQ(curve.max_bytes(6), 5);
  EXPECT_EQ(curve.max_bytes(8), 5);
}

TEST(FoldTest, CarriesTheLastValueIntoColumnsWithoutPoints) {
  const MemoryCurve points({0, 20, 30}, {1, 9, 3});

  // Columns of 10 ns; the point at the very end gets its own.
  const v1::Curve curve = points.Draw(39, {.columns = 4});

  EXPECT_EQ(curve.column_ns(), 10);
  EXPECT_THAT(curve.max_bytes(), ElementsAre(1, 1, 9, 3));
  EXPECT_THAT(curve.min_bytes(), ElementsAre(1, 1, 9, 3));
}

TEST(FoldTest, StartsAWindowWithWhatWasReachedBefore) {
  const MemoryCurve points({0, 20, 30}, {1, 9, 3});

  const v1::Curve curve =
      points.Draw(100, {.from_ns = 25, .to_ns = 35, .columns = 2});

  EXPECT_EQ(curve.start_ns(), 25);
  EXPECT_THAT(curve.max_bytes(), ElementsAre(9, 3));
  EXPECT_EQ(curve.peak_bytes(), 9);
}

TEST(FoldTest, RefusesAWindowOutsideTheStep) {
  EXPECT_TRUE(CheckWindow({.from_ns = 0, .to_ns = 10}, 100).ok());
  EXPECT_FALSE(CheckWindow({.from_ns = 200, .to_ns = 300}, 100).ok());
  EXPECT_FALSE(CheckWindow({.from_ns = 9, .to_ns = 3}, 100).ok());
  EXPECT_FALSE(CheckWindow({.from_ns = -1, .to_ns = 3}, 100).ok());
  EXPECT_FALSE(CheckWindow({.columns = 9000}, 100).ok());
}

}  // namespace
}  // namespace reprise::server
