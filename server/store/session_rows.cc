// SPDX-License-Identifier: Apache-2.0
#include "server/store/session_rows.h"

#include <algorithm>

#include "base/str_cat.h"
#include "profiler/include/reprise_wire.h"
#include "reprise/v1/query.pb.h"
#include "server/store/run_rows.h"

namespace reprise::server {

namespace {

std::string LabelLines(const v1::SessionInfo& info) {
  std::string lines;
  for (const auto& [key, value] : info.labels()) {
    lines += StrCat(key, "=", value, "\n");
  }
  return lines;
}

Status UpsertRun(Database& db, const v1::Hello& hello, const Caller& caller,
                 int64_t now_ns) {
  const v1::SessionInfo& info = hello.info();
  const auto label = info.labels().find("name");
  const bool named = label != info.labels().end() && !label->second.empty();
  const auto imported = info.labels().find("imported");
  return db.Run(
      "INSERT INTO runs (run_id, name, host, pid, world, state,"
      " started_ns, imported, owner)"
      " VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)"
      " ON CONFLICT (run_id) DO UPDATE SET imported = ?8,"
      " owner = CASE WHEN runs.owner = '' THEN ?9 ELSE runs.owner END,"
      " name = CASE WHEN runs.name = runs.run_id THEN ?2"
      "  ELSE runs.name END,"
      " pid = CASE WHEN runs.host = '' THEN ?4 ELSE runs.pid END,"
      " host = CASE WHEN runs.host = '' THEN ?3 ELSE runs.host END,"
      " world = CASE WHEN runs.world < ?5 THEN ?5"
      "  ELSE runs.world END,"
      " state = ?6, ended_ns = 0",
      hello.run_id(), named ? label->second : hello.run_id(), info.host(),
      info.pid(), info.world(), static_cast<int64_t>(v1::RUN_STATE_RUNNING),
      info.realtime_ns() > 0 ? info.realtime_ns() : now_ns,
      imported == info.labels().end() ? std::string() : imported->second,
      caller.who);
}

// Determines how a session ended; its last reports are stored before its end.
StatusOr<v1::RunState> EndOf(Database& db, std::string_view session_id,
                             const v1::Bye& bye) {
  if (bye.killed()) return v1::RUN_STATE_KILLED;
  ASSIGN_OR_RETURN(const auto row,
                   db.First("SELECT 1 FROM plan_states"
                            " WHERE session_id = ? AND state = ?",
                            session_id, int64_t{REPRISE_JOB_FAILED}));
  return row ? v1::RUN_STATE_FAILED : v1::RUN_STATE_FINISHED;
}

}  // namespace

StatusOr<bool> OpenSession(Database& db, const v1::Hello& hello,
                           const Caller& caller, int64_t now_ns) {
  bool is_new = false;
  {
    ASSIGN_OR_RETURN(
        const auto row,
        db.First("SELECT s.run_id, r.owner FROM sessions s"
                 " JOIN runs r ON r.run_id = s.run_id WHERE s.session_id = ?",
                 hello.session_id()));
    is_new = !row;
    // Nothing is said of its run.
    if (row && caller.access.role != Role::kAdmin &&
        row->Text(1) != caller.who) {
      return AlreadyExists(StrCat("hello.session_id: the session \"",
                                  hello.session_id(), "\" is not one of ",
                                  caller.who, "'s; choose another id"));
    }
    if (row && row->Text(0) != hello.run_id()) {
      return FailedPrecondition(StrCat("hello.run_id: session ",
                                       hello.session_id(), " belongs to run ",
                                       row->Text(0), ", got ", hello.run_id()));
    }
  }
  RETURN_IF_ERROR(CheckOwner(db, hello.run_id(), caller));
  RETURN_IF_ERROR(UpsertRun(db, hello, caller, now_ns));
  const v1::SessionInfo& info = hello.info();
  RETURN_IF_ERROR(db.Run(
      "INSERT INTO sessions (session_id, run_id, host, pid,"
      " pid_start_ticks, boot_id, rank, local_rank, world, uid,"
      " labels, monotonic_ns, realtime_ns, state, who, peer)"
      " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
      " ON CONFLICT (session_id) DO UPDATE SET state = excluded.state,"
      " ended_ns = 0, who = excluded.who, peer = excluded.peer",
      hello.session_id(), hello.run_id(), info.host(), info.pid(),
      info.pid_start_ticks(), info.boot_id(), info.rank(), info.local_rank(),
      info.world(), info.uid(), LabelLines(info), info.monotonic_ns(),
      info.realtime_ns(), static_cast<int64_t>(v1::RUN_STATE_RUNNING),
      caller.who, caller.peer));
  return is_new;
}

StatusOr<uint64_t> LoadCommitted(Database& db, std::string_view session_id,
                                 uint64_t producer_epoch) {
  ASSIGN_OR_RETURN(const int64_t committed,
                   LoadNumber(db,
                              "SELECT committed FROM streams"
                              " WHERE session_id = ? AND producer_epoch = ?",
                              session_id, producer_epoch));
  return static_cast<uint64_t>(committed);
}

Status SaveCommitted(Database& db, std::string_view session_id,
                     uint64_t producer_epoch, uint64_t committed) {
  return db.Run(
      "INSERT INTO streams VALUES (?, ?, ?)"
      " ON CONFLICT (session_id, producer_epoch)"
      " DO UPDATE SET committed = excluded.committed",
      session_id, producer_epoch, committed);
}

Status CloseSession(Database& db, std::string_view session_id,
                    const v1::Bye& bye, int64_t now_ns) {
  ASSIGN_OR_RETURN(const v1::RunState end, EndOf(db, session_id, bye));
  const int64_t ended_ns =
      bye.ended_ns() > 0 ? std::min(bye.ended_ns(), now_ns) : now_ns;
  RETURN_IF_ERROR(
      db.Run("UPDATE sessions SET state = ?, ended_ns = ?, pushed = ?,"
             " dropped = ?, torn = ? WHERE session_id = ?",
             static_cast<int64_t>(end), ended_ns, bye.pushed(), bye.dropped(),
             bye.torn(), session_id));
  // max(): RUN_STATE_RUNNING is the smallest. If one process failed and its
  // launcher killed the others, the run failed.
  ASSIGN_OR_RETURN(
      Statement run,
      db.Prepare("UPDATE runs SET ended_ns = (SELECT max(s.ended_ns)"
                 "  FROM sessions s WHERE s.run_id = runs.run_id),"
                 " state = (SELECT max(state)"
                 "  FROM sessions s WHERE s.run_id = runs.run_id)"
                 " WHERE run_id = (SELECT run_id FROM sessions"
                 "  WHERE session_id = ?1)"
                 " AND NOT EXISTS (SELECT 1 FROM sessions s"
                 "  WHERE s.run_id = runs.run_id AND s.state = ?2)"));
  return run.Run(session_id, static_cast<int64_t>(v1::RUN_STATE_RUNNING));
}

StatusOr<int64_t> SaveNames(Database& db, std::string_view session_id,
                            const v1::Defs& defs) {
  ASSIGN_OR_RETURN(Statement upsert,
                   db.Prepare("INSERT INTO names VALUES (?, ?, ?)"
                              " ON CONFLICT (session_id, id) DO UPDATE SET"
                              " text = excluded.text"
                              " WHERE names.text <> excluded.text"));
  int64_t bytes = 0;
  for (const v1::NameDef& name : defs.names()) {
    RETURN_IF_ERROR(upsert.Run(session_id, name.id(), name.text()));
    if (db.changes() > 0) bytes += static_cast<int64_t>(name.text().size());
  }
  return bytes;
}

StatusOr<int64_t> CountNames(Database& db, std::string_view session_id) {
  return LoadNumber(db, "SELECT count(*) FROM names WHERE session_id = ?",
                    session_id);
}

StatusOr<std::vector<LiveSession>> LoadLiveSessions(Database& db) {
  ASSIGN_OR_RETURN(Statement select,
                   db.Select("SELECT session_id, run_id, boot_id, pid,"
                             " pid_start_ticks FROM sessions"
                             " WHERE state = ? AND peer NOT LIKE ?",
                             static_cast<int64_t>(v1::RUN_STATE_RUNNING),
                             StrCat(kForwardedBy, "%")));
  return select.All([](const Statement& row) {
    return LiveSession{.session_id = std::string(row.Text(0)),
                       .run_id = std::string(row.Text(1)),
                       .boot_id = std::string(row.Text(2)),
                       .pid = static_cast<uint32_t>(row.Int(3)),
                       .pid_start_ticks = static_cast<uint64_t>(row.Int(4))};
  });
}

}  // namespace reprise::server
