// SPDX-License-Identifier: Apache-2.0
//
// What both kinds of stores promise.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "base/str_cat.h"
#include "server/store/chunk_rows.h"
#include "server/store/plan_rows.h"
#include "server/store/run_rows.h"
#include "server/store/session_rows.h"
#include "server/store/store.h"
#include "tests/server/postgres_cluster.h"

namespace reprise::server {
namespace {

using ::testing::ElementsAre;

class BothStores : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    StoreOptions options{.path = folder_.path() + "/a.db"};
    if (std::string_view(GetParam()) == "PostgreSQL") {
#ifdef REPRISE_NO_POSTGRES
      GTEST_SKIP() << "built without PostgreSQL (REPRISE_POSTGRES=OFF)";
#endif
      options.url = PostgresCluster::Shared().NewDatabase();
    }
    auto opened = Store::Open(options);
    ASSERT_TRUE(opened.ok()) << opened.status().message();
    store_ = *std::move(opened);
  }

  // Runs `body` in a Write, which must succeed.
  void Write(const std::function<Status(Database&)>& body) {
    const Status status = store_->Write(body);
    ASSERT_TRUE(status.ok()) << status.message();
  }
  int64_t Count(const std::string& sql) {
    int64_t count = -1;
    const Status status = store_->Read([&](Database& db) -> Status {
      ASSIGN_OR_RETURN(Statement select, db.Prepare(sql));
      ASSIGN_OR_RETURN(const bool row, select.Step());
      if (row) count = select.Int(0);
      return OkStatus();
    });
    EXPECT_TRUE(status.ok()) << status.message();
    return count;
  }

  TemporaryFolder folder_;
  std::unique_ptr<Store> store_;
};

INSTANTIATE_TEST_SUITE_P(Kinds, BothStores,
                         ::testing::Values("SQLite", "PostgreSQL"),
                         [](const auto& kind) { return kind.param; });

v1::Hello HelloOf(const std::string& session) {
  v1::Hello hello;
  hello.set_session_id(session);
  hello.set_run_id("run-of-" + session);
  hello.set_producer_epoch(1);
  return hello;
}

Producer ProducerOf(const v1::Hello& hello) {
  return {
      .session_id = hello.session_id(), .run_id = hello.run_id(), .epoch = 1};
}

TEST_P(BothStores, AFailedWriteStoresNothing) {
  const Status status = store_->Write([](Database& db) -> Status {
    RETURN_IF_ERROR(EnsureRun(db, "a", 1));
    return NotFound("something else");
  });

  EXPECT_EQ(status.code(), Code::kNotFound);
  EXPECT_EQ(Count("SELECT count(*) FROM runs"), 0);
  EXPECT_EQ(store_->degraded(), "");
  Write([](Database& db) { return EnsureRun(db, "b", 1); });
  EXPECT_EQ(Count("SELECT count(*) FROM runs"), 1);
}

TEST_P(BothStores, AWriteWhoseStatementFailedStoresNothing) {
  const Status status = store_->Write([](Database& db) -> Status {
    RETURN_IF_ERROR(EnsureRun(db, "a", 1));
    ASSIGN_OR_RETURN(Statement wrong,
                     db.Prepare("INSERT INTO plans VALUES ('p', 'no graph', 1,"
                                " 1, 1, ?1, ?1)"));
    return wrong.Run(Blob{"x"});
  });

  EXPECT_EQ(status.code(), Code::kAlreadyExists) << status.message();
  EXPECT_EQ(Count("SELECT count(*) FROM runs"), 0);
}

TEST_P(BothStores, StatementsOfOneTextDoNotDisturbEachOther) {
  Write([](Database& db) -> Status {
    RETURN_IF_ERROR(EnsureRun(db, "a", 1));
    return EnsureRun(db, "b", 2);
  });

  const Status status = store_->Read([](Database& db) -> Status {
    constexpr char kSql[] = "SELECT run_id FROM runs ORDER BY run_id";
    ASSIGN_OR_RETURN(Statement one, db.Prepare(kSql));
    EXPECT_TRUE(*one.Step());
    {
      ASSIGN_OR_RETURN(Statement other, db.Prepare(kSql));
      EXPECT_TRUE(*other.Step());
      EXPECT_EQ(other.Text(0), "a");
    }
    // The other one ended in the middle; it begins anew.
    ASSIGN_OR_RETURN(Statement again, db.Prepare(kSql));
    EXPECT_TRUE(*again.Step());
    EXPECT_EQ(again.Text(0), "a");
    EXPECT_TRUE(*one.Step());
    EXPECT_EQ(one.Text(0), "b");
    return OkStatus();
  });

  EXPECT_TRUE(status.ok()) << status.message();
}

TEST_P(BothStores, AReaderSeesOneMoment) {
  Write([](Database& db) { return EnsureRun(db, "a", 1); });

  const Status status = store_->Read([&](Database& reader) -> Status {
    EXPECT_EQ(*CountRuns(reader), 1);
    Write([](Database& db) { return EnsureRun(db, "b", 2); });
    EXPECT_EQ(*CountRuns(reader), 1);
    return OkStatus();
  });

  EXPECT_TRUE(status.ok()) << status.message();
  EXPECT_EQ(Count("SELECT count(*) FROM runs"), 2);
}

TEST_P(BothStores, ValuesComeBackAsTheyWere) {
  constexpr int64_t kLeast = std::numeric_limits<int64_t>::min();
  const std::string bytes("\0\xff'\"\n?1", 7);
  Write([&](Database& db) -> Status {
    ASSIGN_OR_RETURN(
        Statement insert,
        db.Prepare("INSERT INTO graphs VALUES (?, ?, ?, ?, ?, ?)"));
    RETURN_IF_ERROR(insert.Run("g", kLeast, "höhe ? 'x' \"y\" $1", -1,
                               std::numeric_limits<int64_t>::max(),
                               Blob{bytes}));
    return insert.Run("h", 0, "", 0, 0, Blob{});
  });

  const Status status = store_->Read([&](Database& db) -> Status {
    ASSIGN_OR_RETURN(
        Statement select,
        db.Prepare("SELECT created_ns, name, ops, storages, body, NULL,"
                   " graph_id = ?1, '?', name IS NULL FROM graphs"
                   " ORDER BY graph_id"));
    RETURN_IF_ERROR(select.BindAll("g"));
    EXPECT_TRUE(*select.Step());
    EXPECT_EQ(select.Int(0), kLeast);
    EXPECT_EQ(select.Text(1), "höhe ? 'x' \"y\" $1");
    EXPECT_EQ(select.Int(2), -1);
    EXPECT_EQ(select.Int(3), std::numeric_limits<int64_t>::max());
    EXPECT_EQ(select.Bytes(4), bytes);
    EXPECT_EQ(select.Int(5), 0);
    EXPECT_EQ(select.Int(6), 1);
    EXPECT_EQ(select.Text(7), "?");
    EXPECT_TRUE(*select.Step());
    EXPECT_EQ(select.Text(1), "");
    EXPECT_EQ(select.Int(8), 0);
    EXPECT_EQ(select.Bytes(4), "");
    EXPECT_EQ(select.Int(6), 0);
    EXPECT_FALSE(*select.Step());
    return OkStatus();
  });
  EXPECT_TRUE(status.ok()) << status.message();
}

TEST_P(BothStores, TextIsInTheOrderOfItsBytes) {
  Write([](Database& db) -> Status {
    for (const char* id : {"b", "a_", "B", "a-", "aa"}) {
      RETURN_IF_ERROR(EnsureRun(db, id, 1));
    }
    return OkStatus();
  });

  std::vector<std::string> ids;
  const Status status = store_->Read([&](Database& db) -> Status {
    ASSIGN_OR_RETURN(const std::vector<v1::Run> runs, LoadRuns(db, 10));
    for (const v1::Run& run : runs) ids.push_back(run.run_id());
    return OkStatus();
  });

  EXPECT_TRUE(status.ok()) << status.message();
  EXPECT_THAT(ids, ElementsAre("B", "a-", "a_", "aa", "b"));
}

TEST_P(BothStores, AChunkIsStoredOnce) {
  const v1::Hello hello = HelloOf("s");
  v1::Chunk chunk;
  chunk.set_seq(1);
  chunk.set_count(5);
  v1::Columns columns;
  columns.add_steps()->set_step(7);

  Write([&](Database& db) -> Status {
    RETURN_IF_ERROR(OpenSession(db, hello, {}, 1).status());
    RETURN_IF_ERROR(InsertChunk(db, ProducerOf(hello), chunk, columns));
    return InsertChunk(db, ProducerOf(hello), chunk, columns);
  });

  EXPECT_EQ(Count("SELECT count(*) FROM chunks"), 1);
  EXPECT_EQ(Count("SELECT count(*) FROM steps"), 1);
  EXPECT_EQ(Count("SELECT records FROM runs"), 5);
}

TEST_P(BothStores, ChunksAreVisitedWhileOtherRowsAreRead) {
  constexpr int64_t kChunks = 21;  // more than are fetched at once
  const v1::Hello hello = HelloOf("s");
  Write([&](Database& db) -> Status {
    RETURN_IF_ERROR(OpenSession(db, hello, {}, 1).status());
    for (int64_t seq = 1; seq <= kChunks; ++seq) {
      v1::Chunk chunk;
      chunk.set_seq(static_cast<uint64_t>(seq));
      chunk.set_t1_ns(seq);
      chunk.set_body(std::to_string(seq));
      RETURN_IF_ERROR(InsertChunk(db, ProducerOf(hello), chunk, {}));
    }
    return OkStatus();
  });

  int64_t next = 3;
  int64_t previous = kChunks;
  const Status status = store_->Read([&](Database& db) -> Status {
    RETURN_IF_ERROR(VisitChunksForwards(
        db, "s", {.epoch = 1, .seq = 3}, 100,
        [&](int64_t t1_ns, std::string_view body) -> Status {
          EXPECT_EQ(t1_ns, next);
          EXPECT_EQ(body, std::to_string(next));
          EXPECT_EQ(*CountRuns(db), 1);
          ++next;
          return OkStatus();
        }));
    return VisitChunksBackwards(
        db, "s", 100, [&](int64_t t1_ns, std::string_view) -> StatusOr<bool> {
          EXPECT_EQ(t1_ns, previous);
          return --previous > 10;
        });
  });

  EXPECT_TRUE(status.ok()) << status.message();
  EXPECT_EQ(next, kChunks + 1);
  EXPECT_EQ(previous, 10);
}

TEST_P(BothStores, APlanThatIsSavedAgainReplacesTheOldOne) {
  PlanRow row;
  row.plan.set_plan_id("p");
  row.plan.set_graph_id("g");
  Write([&](Database& db) -> Status {
    RETURN_IF_ERROR(SaveGraph(db, "g", {}, 1).status());
    RETURN_IF_ERROR(SavePlan(db, row, 1));
    row.plan.set_peak_bytes(5);
    return SavePlan(db, row, 2);
  });

  EXPECT_EQ(Count("SELECT count(*) FROM plans"), 1);
  const Status status = store_->Read([&](Database& db) -> Status {
    ASSIGN_OR_RETURN(const PlanRow loaded, LoadPlan(db, "p"));
    EXPECT_EQ(loaded.plan.peak_bytes(), 5);
    return OkStatus();
  });
  EXPECT_TRUE(status.ok()) << status.message();
}

TEST_P(BothStores, AGraphOfTheSameIdMustBeTheSame) {
  v1::StepGraph graph;
  graph.set_name("one");
  v1::StepGraph other;
  other.set_name("other");
  Write([&](Database& db) -> Status {
    EXPECT_TRUE(*SaveGraph(db, "g", graph, 1));
    EXPECT_FALSE(*SaveGraph(db, "g", graph, 1));
    EXPECT_EQ(SaveGraph(db, "g", other, 1).status().code(),
              Code::kAlreadyExists);
    return OkStatus();
  });
}

TEST_P(BothStores, ARunIsFoundByItsBeginningButNotByAnAmbiguousOne) {
  Write([](Database& db) -> Status {
    RETURN_IF_ERROR(EnsureRun(db, "abc-1", 1));
    RETURN_IF_ERROR(EnsureRun(db, "abc-2", 2));
    RETURN_IF_ERROR(EnsureRun(db, "abc", 3));
    RETURN_IF_ERROR(EnsureRun(db, "x%", 4));
    EXPECT_EQ(*ResolveRunId(db, "abc-1"), "abc-1");
    EXPECT_EQ(*ResolveRunId(db, "abc"), "abc");  // exact match wins over prefix
    EXPECT_EQ(*ResolveRunId(db, "x"), "x%");
    EXPECT_EQ(*ResolveRunId(db, "latest"), "x%");
    EXPECT_EQ(ResolveRunId(db, "ab").status().code(), Code::kInvalidArgument);
    EXPECT_EQ(ResolveRunId(db, "%").status().code(), Code::kNotFound);
    EXPECT_EQ(ResolveRunId(db, "").status().code(), Code::kInvalidArgument);
    return OkStatus();
  });
}

TEST_P(BothStores, ARunOfAnOwnerIsNoOtherWhateverBecameOfIt) {
  Write([](Database& db) -> Status {
    const Caller alice{.who = "alice", .peer = "", .access = {}};
    RETURN_IF_ERROR(ClaimRun(db, "exp-17", alice, 1));
    EXPECT_EQ(*ResolveRunId(db, OwnersRun("exp-17", "alice")), "exp-17");
    EXPECT_EQ(*ResolveRunOf(db, "exp", "alice"), "exp-17");
    // Bob's, which is gone: neither what its id begins, nor who has it now.
    for (const char* id : {"exp-1", "exp-17", "latest"}) {
      EXPECT_EQ(ResolveRunId(db, OwnersRun(id, "bob")).status().code(),
                Code::kNotFound)
          << id;
    }
    EXPECT_EQ(ResolveRunOf(db, "exp", "bob").status().code(), Code::kNotFound);
    EXPECT_EQ(
        ClaimRun(db, "exp-17", {.who = "bob", .peer = "", .access = {}}, 2)
            .code(),
        Code::kAlreadyExists);
    return OkStatus();
  });
}

TEST_P(BothStores, NamesThatAreNewAreCounted) {
  const v1::Hello hello = HelloOf("s");
  v1::Defs defs;
  defs.add_names()->set_id(1);
  defs.mutable_names(0)->set_text("four");
  Write([&](Database& db) -> Status {
    RETURN_IF_ERROR(OpenSession(db, hello, {}, 1).status());
    EXPECT_EQ(*SaveNames(db, "s", defs), 4);
    EXPECT_EQ(*SaveNames(db, "s", defs), 0);
    defs.mutable_names(0)->set_text("other");
    EXPECT_EQ(*SaveNames(db, "s", defs), 5);
    EXPECT_THAT(*LoadNames(db, "s"), ElementsAre("", "other"));
    return OkStatus();
  });
}

}  // namespace
}  // namespace reprise::server
