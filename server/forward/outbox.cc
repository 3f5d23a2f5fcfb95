// SPDX-License-Identifier: Apache-2.0
#include "server/forward/outbox.h"

#include <utility>

namespace reprise::server {

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
    {
      ASSIGN_OR_RETURN(
          Statement other,
          database.Prepare("SELECT 1 FROM centre WHERE target <> ?"));
      RETURN_IF_ERROR(other.BindAll(target));
      ASSIGN_OR_RETURN(const bool found, other.Step());
      other.Reset();
      if (found) {
        RETURN_IF_ERROR(
            database.Execute("DELETE FROM centre; DELETE FROM ended;"
                             "DELETE FROM plans; DELETE FROM runs"));
      }
    }
    ASSIGN_OR_RETURN(Statement insert,
                     database.Prepare("INSERT INTO centre VALUES (?)"
                                      " ON CONFLICT DO NOTHING"));
    return insert.Run(target);
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
  ASSIGN_OR_RETURN(Statement upsert,
                   database_.Prepare("INSERT INTO ended VALUES (?, ?)"
                                     " ON CONFLICT (session_id) DO UPDATE SET"
                                     " chunks = excluded.chunks"));
  return upsert.Run(session_id, chunks);
}

Status Outbox::RemoveEnded(const std::string& session_id) {
  ASSIGN_OR_RETURN(Statement remove,
                   database_.Prepare("DELETE FROM ended WHERE session_id = ?"));
  return remove.Run(session_id);
}

StatusOr<bool> Outbox::HasPlan(const std::string& run_id,
                               const std::string& plan_id) {
  ASSIGN_OR_RETURN(Statement select,
                   database_.Prepare("SELECT 1 FROM plans WHERE run_id = ?"
                                     " AND plan_id = ?"));
  RETURN_IF_ERROR(select.BindAll(run_id, plan_id));
  return select.Step();
}

Status Outbox::AddPlan(const std::string& run_id, const std::string& plan_id) {
  ASSIGN_OR_RETURN(Statement insert,
                   database_.Prepare("INSERT INTO plans VALUES (?, ?)"
                                     " ON CONFLICT DO NOTHING"));
  return insert.Run(run_id, plan_id);
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
  ASSIGN_OR_RETURN(Statement upsert,
                   database_.Prepare("INSERT INTO runs VALUES (?, ?)"
                                     " ON CONFLICT (run_id) DO UPDATE SET"
                                     " facts = excluded.facts"));
  return upsert.Run(run_id, facts);
}

Status Outbox::RemoveRun(const std::string& run_id) {
  for (const char* sql : {"DELETE FROM runs WHERE run_id = ?",
                          "DELETE FROM plans WHERE run_id = ?"}) {
    ASSIGN_OR_RETURN(Statement remove, database_.Prepare(sql));
    RETURN_IF_ERROR(remove.Run(run_id));
  }
  return OkStatus();
}

}  // namespace reprise::server
