// SPDX-License-Identifier: Apache-2.0
#include "server/forward/outbox.h"

#include <utility>

#include "base/crc32c.h"
#include "base/str_cat.h"
#include "reprise/v1/query.pb.h"
#include "server/store/session_rows.h"

namespace reprise::server {
namespace {

constexpr size_t kNamesBytes = 256 << 10;

uint64_t Unsigned(int64_t value) { return static_cast<uint64_t>(value); }
uint32_t Small(int64_t value) { return static_cast<uint32_t>(value); }

}  // namespace

StatusOr<Outbox> Outbox::Open(const std::string& path,
                              const std::string& target) {
  ASSIGN_OR_RETURN(Database database, Database::Open(path));
  RETURN_IF_ERROR(database.Execute(
      "CREATE TABLE IF NOT EXISTS centre (target TEXT PRIMARY KEY)"
      " WITHOUT ROWID;"
      "CREATE TABLE IF NOT EXISTS ended (session_id TEXT PRIMARY KEY,"
      " chunks INTEGER NOT NULL) WITHOUT ROWID;"
      "CREATE TABLE IF NOT EXISTS plans (run_id TEXT, plan_id TEXT,"
      " PRIMARY KEY (run_id, plan_id)) WITHOUT ROWID;"
      "CREATE TABLE IF NOT EXISTS runs (run_id TEXT PRIMARY KEY,"
      " facts TEXT NOT NULL) WITHOUT ROWID"));
  RETURN_IF_ERROR(database.Transaction([&]() -> Status {
    ASSIGN_OR_RETURN(
        const int64_t others,
        LoadNumber(database, "SELECT count(*) FROM centre WHERE target <> ?",
                   target));
    if (others > 0) {
      RETURN_IF_ERROR(
          database.Execute("DELETE FROM centre; DELETE FROM ended;"
                           "DELETE FROM plans; DELETE FROM runs"));
    }
    return database.Run("INSERT INTO centre VALUES (?) ON CONFLICT DO NOTHING",
                        target);
  }));
  return Outbox(std::move(database));
}

StatusOr<std::map<std::string, uint64_t>> Outbox::Ended() {
  ASSIGN_OR_RETURN(Statement select,
                   database_.Prepare("SELECT session_id, chunks FROM ended"));
  std::map<std::string, uint64_t> ended;
  while (true) {
    ASSIGN_OR_RETURN(const bool row, select.Step());
    if (!row) return ended;
    ended.emplace(select.Text(0), static_cast<uint64_t>(select.Int(1)));
  }
}

Status Outbox::SetEnded(const std::string& session_id, uint64_t chunks) {
  return database_.Run(
      "INSERT INTO ended VALUES (?, ?) ON CONFLICT (session_id) DO UPDATE SET"
      " chunks = excluded.chunks",
      session_id, chunks);
}

Status Outbox::RemoveEnded(const std::string& session_id) {
  return database_.Run("DELETE FROM ended WHERE session_id = ?", session_id);
}

StatusOr<bool> Outbox::HasPlan(const std::string& run_id,
                               const std::string& plan_id) {
  ASSIGN_OR_RETURN(Statement select,
                   database_.Select("SELECT 1 FROM plans WHERE run_id = ?"
                                    " AND plan_id = ?",
                                    run_id, plan_id));
  return select.Step();
}

Status Outbox::AddPlan(const std::string& run_id, const std::string& plan_id) {
  return database_.Run("INSERT INTO plans VALUES (?, ?) ON CONFLICT DO NOTHING",
                       run_id, plan_id);
}

StatusOr<std::map<std::string, std::string>> Outbox::Runs() {
  ASSIGN_OR_RETURN(Statement select,
                   database_.Prepare("SELECT run_id, facts FROM runs"));
  std::map<std::string, std::string> runs;
  while (true) {
    ASSIGN_OR_RETURN(const bool row, select.Step());
    if (!row) return runs;
    runs.emplace(select.Text(0), select.Text(1));
  }
}

Status Outbox::SetRun(const std::string& run_id, const std::string& facts) {
  return database_.Run(
      "INSERT INTO runs VALUES (?, ?) ON CONFLICT (run_id) DO UPDATE SET"
      " facts = excluded.facts",
      run_id, facts);
}

Status Outbox::RemoveRun(const std::string& run_id) {
  for (const char* sql : {"DELETE FROM runs WHERE run_id = ?",
                          "DELETE FROM plans WHERE run_id = ?"}) {
    RETURN_IF_ERROR(database_.Run(sql, run_id));
  }
  return OkStatus();
}

std::string RunFacts::Text() const {
  return StrCat(graph_id, " ", plan_id, " ", exit_code, " ", exit_signal);
}

StatusOr<std::vector<ListedSession>> ListSessions(Database& db) {
  ASSIGN_OR_RETURN(
      Statement select,
      db.Select("SELECT s.session_id, s.run_id, s.state,"
                " (SELECT coalesce(sum(t.committed), 0) FROM streams t"
                "  WHERE t.session_id = s.session_id),"
                " r.graph_id, r.plan_id, r.exit_code, r.exit_signal"
                " FROM sessions s JOIN runs r ON r.run_id = s.run_id"
                " WHERE s.peer NOT LIKE ?1"
                " ORDER BY s.state <> ?2, s.ended_ns, s.session_id",
                StrCat(kForwardedBy, "%"),
                static_cast<int64_t>(v1::RUN_STATE_RUNNING)));
  return select.All([](const Statement& row) {
    return ListedSession{.session_id = std::string(row.Text(0)),
                         .run_id = std::string(row.Text(1)),
                         .running = row.Int(2) == v1::RUN_STATE_RUNNING,
                         .committed = Unsigned(row.Int(3)),
                         .run = {.graph_id = std::string(row.Text(4)),
                                 .plan_id = std::string(row.Text(5)),
                                 .exit_code = row.Int(6),
                                 .exit_signal = row.Int(7)}};
  });
}

StatusOr<std::vector<StoredSession>> LoadStoredSession(
    Database& db, std::string_view session_id) {
  ASSIGN_OR_RETURN(
      Statement select,
      db.Select("SELECT s.run_id, s.host, s.pid, s.pid_start_ticks, s.boot_id,"
                " s.rank, s.local_rank, s.world, s.uid, s.labels,"
                " s.monotonic_ns, s.realtime_ns, s.state, s.pushed, s.dropped,"
                " s.torn, coalesce(t.producer_epoch, 1),"
                " coalesce(t.committed, 0), c.report,"
                " (SELECT count(*) FROM names n"
                "  WHERE n.session_id = s.session_id), s.ended_ns"
                " FROM sessions s"
                " LEFT JOIN streams t ON t.session_id = s.session_id"
                " LEFT JOIN capabilities c ON c.session_id = s.session_id"
                " WHERE s.session_id = ? ORDER BY t.producer_epoch",
                session_id));
  return select.All([session_id](const Statement& row) {
    StoredSession epoch;
    epoch.hello.set_session_id(std::string(session_id));
    epoch.hello.set_run_id(std::string(row.Text(0)));
    epoch.hello.set_producer_epoch(Unsigned(row.Int(16)));
    epoch.hello.add_features(std::string(kForwardedFeature));
    v1::SessionInfo& info = *epoch.hello.mutable_info();
    info.set_host(std::string(row.Text(1)));
    info.set_pid(Small(row.Int(2)));
    info.set_pid_start_ticks(Unsigned(row.Int(3)));
    info.set_boot_id(std::string(row.Text(4)));
    info.set_rank(Small(row.Int(5)));
    info.set_local_rank(Small(row.Int(6)));
    info.set_world(Small(row.Int(7)));
    info.set_uid(Small(row.Int(8)));
    ForEachLabel(
        row.Text(9), [&](std::string_view key, std::string_view value) {
          (*info.mutable_labels())[std::string(key)] = std::string(value);
        });
    info.set_monotonic_ns(row.Int(10));
    info.set_realtime_ns(row.Int(11));
    if (row.Int(12) != v1::RUN_STATE_RUNNING) {
      v1::Bye& bye = epoch.bye.emplace();
      bye.set_killed(row.Int(12) == v1::RUN_STATE_KILLED);
      bye.set_pushed(Unsigned(row.Int(13)));
      bye.set_dropped(Unsigned(row.Int(14)));
      bye.set_torn(Unsigned(row.Int(15)));
      bye.set_ended_ns(row.Int(20));
    }
    epoch.committed = Unsigned(row.Int(17));
    epoch.caps.ParseFromString(std::string(row.Bytes(18)));
    epoch.names = Unsigned(row.Int(19));
    return epoch;
  });
}

void StoredChunks::Set(int64_t key, const std::string& session_id,
                       uint64_t epoch) {
  auto place = std::make_shared<Place>();
  place->session_id = session_id;
  place->epoch = epoch;
  const std::lock_guard lock(mutex_);
  places_[key] = std::move(place);
}

void StoredChunks::Forget(int64_t key) {
  const std::lock_guard lock(mutex_);
  places_.erase(key);
}

std::shared_ptr<StoredChunks::Place> StoredChunks::PlaceOf(int64_t key) const {
  const std::lock_guard lock(mutex_);
  const auto found = places_.find(key);
  return found == places_.end() ? std::make_shared<Place>() : found->second;
}

StatusOr<std::optional<v1::Chunk>> StoredChunks::NextChunk(int64_t key,
                                                           uint64_t seq) {
  const std::shared_ptr<Place> place = PlaceOf(key);
  using Found = std::optional<v1::Chunk>;
  return store_.Get([&](Database& db) -> StatusOr<Found> {
    ASSIGN_OR_RETURN(
        const auto row,
        db.First("SELECT seq, t0_ns, t1_ns, count, dropped_before, body"
                 " FROM chunks WHERE session_id = ? AND producer_epoch = ?"
                 " AND seq >= ? ORDER BY seq LIMIT 1",
                 place->session_id, place->epoch, seq));
    Found found;
    if (!row) return found;
    found.emplace();
    found->set_seq(Unsigned(row->Int(0)));
    found->set_t0_ns(Unsigned(row->Int(1)));
    found->set_t1_ns(Unsigned(row->Int(2)));
    found->set_count(Small(row->Int(3)));
    found->set_dropped_before(Unsigned(row->Int(4)));
    found->set_body(std::string(row->Bytes(5)));
    found->set_crc32c(Crc32c(found->body()));
    return found;
  });
}

StatusOr<std::vector<SpooledName>> StoredChunks::NamesAfter(int64_t key,
                                                            uint64_t after) {
  const std::shared_ptr<Place> place = PlaceOf(key);
  if (after == 0) place->names.clear();
  std::vector<SpooledName> names;
  RETURN_IF_ERROR(store_.Read([&](Database& db) -> Status {
    ASSIGN_OR_RETURN(Statement select,
                     db.Prepare("SELECT id, text FROM names"
                                " WHERE session_id = ? ORDER BY id",
                                Fetch::kFew));
    RETURN_IF_ERROR(select.BindAll(place->session_id));
    size_t bytes = 0;
    while (bytes < kNamesBytes) {
      ASSIGN_OR_RETURN(const bool row, select.Step());
      if (!row) return OkStatus();
      if (!place->names.insert(select.Int(0)).second) continue;
      SpooledName& name = names.emplace_back();
      name.ordinal = place->names.size();
      name.name = Small(select.Int(0));
      name.text = select.Text(1);
      bytes += name.text.size() + 16;
    }
    return OkStatus();
  }));
  return names;
}

}  // namespace reprise::server
