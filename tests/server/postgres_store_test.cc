// SPDX-License-Identifier: Apache-2.0
//
// What only a store in PostgreSQL promises: several daemons, and connections
// that break.
#include "server/store/postgres_store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <set>
#include <thread>

#include "base/str_cat.h"
#include "server/store/run_rows.h"
#include "tests/server/commit_proxy.h"
#include "tests/server/postgres_cluster.h"
#include "tests/server/server_harness.h"

namespace reprise::server {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;

PostgresCluster& Cluster() { return PostgresCluster::Shared(); }

std::unique_ptr<Store> OpenAt(const std::string& url) {
  auto opened = Store::Open({.url = url});
  EXPECT_TRUE(opened.ok()) << opened.status().message();
  return opened.ok() ? *std::move(opened) : nullptr;
}

DaemonOptions At(const std::string& url) {
  DaemonOptions options = TestServer::DefaultOptions();
  options.store_url = url;
  return options;
}

Status AddRun(Store& store, const std::string& run_id) {
  return store.Write(
      [&](Database& db) -> Status { return EnsureRun(db, run_id, 1); });
}

int64_t Runs(Store& store) {
  int64_t count = -1;
  const Status status = store.Read([&](Database& db) -> Status {
    ASSIGN_OR_RETURN(count, CountRuns(db));
    return OkStatus();
  });
  EXPECT_TRUE(status.ok()) << status.message();
  return count;
}

// ---- The schema ----

TEST(PostgresStoreTest, ItsTablesHaveTheColumnsOfSqlite) {
  const TemporaryFolder folder;
  const auto file = Store::Open({.path = folder.path() + "/a.db"});
  const std::string url = Cluster().NewDatabase();
  const auto store = OpenAt(url);
  std::string columns;
  const Status read = (*file)->Read([&](Database& db) -> Status {
    ASSIGN_OR_RETURN(
        Statement select,
        db.Prepare("SELECT t.name, c.name FROM sqlite_schema t,"
                   " pragma_table_info(t.name) c WHERE t.type = 'table'"
                   " AND t.name NOT LIKE 'sqlite_%' ORDER BY t.name, c.cid"));
    while (true) {
      ASSIGN_OR_RETURN(const bool row, select.Step());
      if (!row) return OkStatus();
      columns += StrCat(select.Text(0), "|", select.Text(1), "\n");
    }
  });
  ASSERT_TRUE(read.ok()) << read.message();

  EXPECT_EQ(Cluster().Run(url,
                          "SELECT table_name COLLATE \\\"C\\\", column_name"
                          " FROM information_schema.columns"
                          " WHERE table_schema = 'public'"
                          " AND table_name NOT LIKE 'reprise%'"
                          " ORDER BY 1, ordinal_position") +
                "\n",
            columns);
}

TEST(PostgresStoreTest, DaemonsThatStartTogetherMigrateOnce) {
  const std::string url = Cluster().NewDatabase();
  std::vector<std::thread> daemons;
  for (int i = 0; i < 6; ++i) {
    daemons.emplace_back([&, i] {
      const auto store = OpenAt(url);
      EXPECT_TRUE(store && AddRun(*store, StrCat("run-", i)).ok());
    });
  }
  for (std::thread& daemon : daemons) daemon.join();

  EXPECT_EQ(Cluster().Run(url, "SELECT count(*) FROM reprise_schema"), "1");
  EXPECT_EQ(Runs(*OpenAt(url)), 6);
}

TEST(PostgresStoreTest, RefusesTheDatabaseOfANewerVersion) {
  const std::string url = Cluster().NewDatabase();
  ASSERT_NE(OpenAt(url), nullptr);
  Cluster().Run(url, "UPDATE reprise_schema SET version = 999");

  const auto store = Store::Open({.url = url});

  EXPECT_EQ(store.status().code(), Code::kFailedPrecondition);
  EXPECT_THAT(store.status().message(), HasSubstr("schema 999"));
}

TEST(PostgresStoreTest, NamesATableThatIsMissing) {
  const std::string url = Cluster().NewDatabase();
  ASSERT_NE(OpenAt(url), nullptr);
  Cluster().Run(url, "DROP TABLE moments");

  const auto store = Store::Open({.url = url});

  EXPECT_EQ(store.status().code(), Code::kDataLoss);
  EXPECT_THAT(store.status().message(), HasSubstr("moments is missing"));
}

// ---- The URL ----

TEST(PostgresStoreTest, TakesNoPasswordOnTheCommandLine) {
  for (const char* url :
       {"postgresql://me:secret@db/runs", "postgresql://db/?password=secret"}) {
    const Status status = CheckPostgresUrl(url);

    EXPECT_EQ(status.code(), Code::kInvalidArgument);
    EXPECT_THAT(status.message(), HasSubstr("PGPASSFILE"));
    EXPECT_THAT(status.message(), ::testing::Not(HasSubstr("secret")));
  }
  EXPECT_TRUE(CheckPostgresUrl("postgresql://me@db:5433/runs").ok());
}

TEST(PostgresStoreTest, SaysInOneLineThatNothingAnswers) {
  const auto store =
      Store::Open({.url = "postgresql:///runs?host=/nonexistent"});

  EXPECT_EQ(store.status().code(), Code::kUnavailable);
  EXPECT_THAT(store.status().message(), HasSubstr("/nonexistent"));
  EXPECT_THAT(store.status().message(), ::testing::Not(HasSubstr("\n")));
}

// ---- What PostgreSQL's text cannot hold ----

TEST(PostgresStoreTest, NulAndBrokenUtf8InTextBecomeReplacementCharacters) {
  const auto store = OpenAt(Cluster().NewDatabase());
  const std::string name("a\0b\xff", 4);

  const Status status = store->Write([&](Database& db) -> Status {
    ASSIGN_OR_RETURN(Statement insert,
                     db.Prepare("INSERT INTO names VALUES ('s', 1, ?)"));
    RETURN_IF_ERROR(insert.Run(name));
    ASSIGN_OR_RETURN(Statement select, db.Prepare("SELECT text FROM names"));
    EXPECT_TRUE(*select.Step());
    EXPECT_EQ(select.Text(0), "a\uFFFDb\uFFFD");
    return OkStatus();
  });

  EXPECT_TRUE(status.ok()) << status.message();
}

// ---- Several daemons ----

TEST(PostgresStoreTest, OneBodyWritesAtATimeOverAllDaemons) {
  const std::string url = Cluster().NewDatabase();
  const auto first = OpenAt(url);
  const auto second = OpenAt(url);
  ASSERT_TRUE(AddRun(*first, "r").ok());
  // Reads a number, and writes it back larger: not safe if two did so at once.
  const auto count_up = [](Store* store) {
    for (int i = 0; i < 25; ++i) {
      const Status status = store->Write([](Database& db) -> Status {
        ASSIGN_OR_RETURN(const v1::Run run, LoadRun(db, "r"));
        ASSIGN_OR_RETURN(Statement update,
                         db.Prepare("UPDATE runs SET records = ?"));
        return update.Run(run.records() + 1);
      });
      EXPECT_TRUE(status.ok()) << status.message();
    }
  };

  std::thread one(count_up, first.get());
  std::thread two(count_up, second.get());
  one.join();
  two.join();

  EXPECT_EQ(Cluster().Run(url, "SELECT records FROM runs"), "50");
}

TEST(PostgresStoreTest, AWatcherIsToldOfOthersChangesOnceTheyAreCommitted) {
  const std::string url = Cluster().NewDatabase();
  const auto watching = OpenAt(url);
  const auto other = OpenAt(url);
  std::mutex mutex;
  std::multiset<std::string> told;
  const auto times = [&](const std::string& run_id) {
    const std::lock_guard lock(mutex);
    return told.count(run_id);
  };
  watching->Watch([&](const std::string& run_id) {
    const std::lock_guard lock(mutex);
    told.insert(run_id);
  });
  ASSERT_TRUE(Eventually([&] { return times("") == 1; }));

  ASSERT_TRUE(AddRun(*watching, "own").ok());
  EXPECT_FALSE(other
                   ->Write([](Database& db) -> Status {
                     RETURN_IF_ERROR(EnsureRun(db, "undone", 1));
                     return Cancelled("");
                   })
                   .ok());
  ASSERT_TRUE(AddRun(*other, "others").ok());

  EXPECT_TRUE(Eventually([&] { return times("others") == 1; }));
  EXPECT_EQ(times("own"), 0u);
  EXPECT_EQ(times("undone"), 0u);
  // After its connection broke, anything may have changed meanwhile.
  Cluster().Run(url,
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE query LIKE 'LISTEN%' AND datname = current_database()");
  EXPECT_TRUE(Eventually([&] { return times("") == 2; }));
}

TEST(PostgresStoreTest, APageOfOneDaemonShowsWhatCameToAnother) {
  TestServer first(At(Cluster().NewDatabase()));
  TestServer second(At(first.store_url()));
  (void)first.PutGraph(SmallGraph(), "r");
  grpc::ClientContext context;
  v1::WatchRunRequest request;
  request.set_run_id("r");
  const auto events = second.query().WatchRun(&context, request);
  v1::RunEvent event;
  ASSERT_TRUE(events->Read(&event));
  EXPECT_EQ(event.run().steps(), 0u);

  Sender sender(first.ingest(), "s", "r");
  ASSERT_TRUE(sender.Greet());
  v1::StepReport step;
  step.set_step(3);
  ASSERT_TRUE(sender.SendChunk(StepChunk(1, {step})));
  ASSERT_TRUE(sender.AwaitAck(1));
  ASSERT_TRUE(sender.Bye());

  uint64_t steps = 0;
  while (events->Read(&event)) steps = event.run().steps();
  EXPECT_EQ(steps, 1u);
  EXPECT_TRUE(events->Finish().ok());
}

TEST(PostgresStoreTest, ASessionGoesOnAtAnotherDaemonWithoutLossOrDouble) {
  TestServer first(At(Cluster().NewDatabase()));
  TestServer second(At(first.store_url()));
  uint64_t sent = 0;
  for (int turn = 0; turn < 6; ++turn) {
    TestServer& server = turn % 2 == 0 ? first : second;
    Sender sender(server.ingest(), "s", "r");
    const std::optional<uint64_t> resume = sender.Greet();
    ASSERT_TRUE(resume);
    EXPECT_EQ(*resume, sent);
    // The last one of before comes again, as after a lost acknowledgement.
    for (uint64_t seq = std::max<uint64_t>(sent, 1); seq <= sent + 3; ++seq) {
      ASSERT_TRUE(sender.SendChunk(OpChunk(seq)));
    }
    sent += 3;
    ASSERT_TRUE(sender.AwaitAck(sent));
  }

  EXPECT_EQ(first.CountRows("SELECT count(*) FROM chunks"), 18);
  EXPECT_EQ(first.CountRows("SELECT max(seq) FROM chunks"), 18);
  EXPECT_EQ(second.GetRun("r").records(), 54u);
}

TEST(PostgresStoreTest, ALeaseHasOneHolderAndIsFreeWhenItsHolderIsGone) {
  const std::string url = Cluster().NewDatabase();
  const auto first = OpenAt(url);
  const auto second = OpenAt(url);
  const auto free = [&](const std::unique_ptr<Store>& store) {
    const auto lease = store->TryLease("plan");
    EXPECT_TRUE(lease.ok()) << lease.status().message();
    return lease.ok() && *lease != nullptr;
  };

  auto held = first->TryLease("plan");
  ASSERT_TRUE(held.ok() && *held != nullptr);
  EXPECT_FALSE(free(first));
  EXPECT_FALSE(free(second));
  EXPECT_NE(*second->TryLease("another"), nullptr);
  held->reset();
  EXPECT_TRUE(free(second));

  held = first->TryLease("plan");
  ASSERT_TRUE(held.ok() && *held != nullptr);
  // As when its daemon is killed.
  Cluster().Run(url,
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE"
                " state = 'idle in transaction'"
                " AND datname = current_database()");
  EXPECT_TRUE(Eventually([&] { return free(second); }));
}

TEST(PostgresStoreTest, EqualRequestsAtTwoDaemonsMakeOnePlan) {
  TestServer first(At(Cluster().NewDatabase()));
  TestServer second(At(first.store_url()));
  const std::string graph = first.PutGraph(SmallGraph(), "r");
  std::set<std::string> ids;
  std::mutex mutex;
  std::vector<std::thread> clients;
  for (int i = 0; i < 12; ++i) {
    clients.emplace_back([&, i] {
      v1::PlanRequest request;
      request.set_graph_id(graph);
      request.set_budget("20KiB");
      request.set_run_id(StrCat("run-", i));  // does not matter
      const v1::Plan plan = (i % 2 == 0 ? first : second).Plan(request);
      const std::lock_guard lock(mutex);
      ids.insert(plan.plan_id());
    });
  }
  for (std::thread& client : clients) client.join();

  EXPECT_EQ(ids.size(), 1u);
  // A server counts the plans that it makes.
  const auto made = [](const TestServer& server) {
    const std::string text = server.Http(
        "GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: "
        "close\r\n\r\n");
    int plans = 0;
    constexpr std::string_view kCount = "reprise_plans_total{";
    for (size_t at = 0; (at = text.find(kCount, at)) != std::string::npos;) {
      at = text.find(' ', at) + 1;
      plans += std::atoi(text.c_str() + at);
    }
    return plans;
  };
  EXPECT_EQ(made(first) + made(second), 1);
  for (int i = 0; i < 12; ++i) {
    EXPECT_EQ(second.GetRun(StrCat("run-", i)).plan_id(), *ids.begin());
  }
}

// ---- Connections that break ----

TEST(PostgresStoreTest, AfterTheServerWasAwayTheNextCallGoesThrough) {
  PostgresCluster cluster;
  const std::string url = cluster.NewDatabase();
  const auto store = OpenAt(url);
  ASSERT_TRUE(AddRun(*store, "before").ok());
  EXPECT_EQ(Runs(*store), 1);

  cluster.Kill();
  const Status write = AddRun(*store, "lost");
  EXPECT_EQ(write.code(), Code::kUnavailable) << write.message();
  EXPECT_THAT(store->degraded(), HasSubstr("PostgreSQL"));
  const Status read =
      store->Read([](Database& db) { return CountRuns(db).status(); });
  EXPECT_EQ(read.code(), Code::kUnavailable) << read.message();
  cluster.Start();

  EXPECT_EQ(Runs(*store), 1);
  EXPECT_TRUE(AddRun(*store, "after").ok());
  EXPECT_EQ(store->degraded(), "");
  EXPECT_EQ(Runs(*store), 2);
}

TEST(PostgresStoreTest, AConnectionThatBreaksInABodyStoresNothing) {
  const std::string url = Cluster().NewDatabase();
  const auto store = OpenAt(url);

  const Status status = store->Write([&](Database& db) -> Status {
    RETURN_IF_ERROR(EnsureRun(db, "a", 1));
    Cluster().Run(url,
                  "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                  " WHERE datname = current_database() AND backend_xid IS NOT"
                  " NULL");
    return EnsureRun(db, "b", 1);
  });

  EXPECT_EQ(status.code(), Code::kUnavailable) << status.message();
  EXPECT_EQ(Runs(*store), 0);
  EXPECT_TRUE(AddRun(*store, "c").ok());
}

// The server commits, but its answer never comes.
TEST(PostgresStoreTest, ACommitWhoseAnswerIsLostIsKnownToHaveTakenPlace) {
  const std::string url = Cluster().NewDatabase();
  CommitProxy proxy(Cluster().socket());
  const auto store = OpenAt(Cluster().UrlIn(proxy.folder(), url));

  proxy.CutNextCommit(CommitProxy::Cut::kAnswer);
  const Status status = AddRun(*store, "a");

  EXPECT_TRUE(status.ok()) << status.message();
  EXPECT_EQ(proxy.cuts(), 1);
  EXPECT_EQ(Runs(*store), 1);
}

// The connection breaks before the server hears of it.
TEST(PostgresStoreTest, ACommitThatDidNotArriveIsKnownNotToHaveTakenPlace) {
  const std::string url = Cluster().NewDatabase();
  CommitProxy proxy(Cluster().socket());
  const auto store = OpenAt(Cluster().UrlIn(proxy.folder(), url));

  proxy.CutNextCommit(CommitProxy::Cut::kRequest);
  const Status status = AddRun(*store, "a");

  EXPECT_EQ(status.code(), Code::kUnavailable);
  EXPECT_THAT(status.message(), HasSubstr("nothing was stored"));
  EXPECT_EQ(proxy.cuts(), 1);
  EXPECT_EQ(Runs(*store), 0);
}

TEST(PostgresStoreTest, WhatADaemonAcknowledgedSurvivesCutsAtEveryCommit) {
  const std::string url = Cluster().NewDatabase();
  CommitProxy proxy(Cluster().socket());
  TestServer server(At(Cluster().UrlIn(proxy.folder(), url)));
  constexpr uint64_t kChunks = 24;
  uint64_t acknowledged = 0;
  for (int turn = 0; acknowledged < kChunks && turn < 200; ++turn) {
    Sender sender(server.ingest(), "s", "r");
    const std::optional<uint64_t> resume = sender.Greet();
    if (!resume) continue;  // the cut hit the greeting
    EXPECT_GE(*resume, acknowledged);
    proxy.CutNextCommit(turn % 2 == 0 ? CommitProxy::Cut::kRequest
                                      : CommitProxy::Cut::kAnswer);
    for (uint64_t seq = *resume + 1; seq <= std::min(*resume + 4, kChunks);
         ++seq) {
      if (!sender.SendChunk(OpChunk(seq))) break;
    }
    (void)sender.AwaitAck(std::min(*resume + 4, kChunks));
    acknowledged = std::max(acknowledged, *resume);
    if (Cluster().Run(url, "SELECT count(*) FROM chunks") == "24") {
      acknowledged = kChunks;
    }
  }

  EXPECT_EQ(acknowledged, kChunks);
  EXPECT_GT(proxy.cuts(), 4);
  EXPECT_EQ(Cluster().Run(url, "SELECT count(*), max(seq) FROM chunks"),
            "24|24");
  EXPECT_EQ(Cluster().Run(url, "SELECT records FROM runs"), "72");
}

}  // namespace
}  // namespace reprise::server
