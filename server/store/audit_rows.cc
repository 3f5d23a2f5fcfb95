// SPDX-License-Identifier: Apache-2.0
#include "server/store/audit_rows.h"

#include <array>
#include <string>
#include <utility>

#include "base/str_cat.h"
#include "server/store/store.h"

namespace reprise::server {

namespace {

constexpr size_t kMostTextBytes = 256;
constexpr size_t kMostDetailBytes = 512;

// What an executor did with a plan, by reprise.v1.PlanState.state.
std::pair<std::string_view, std::string_view> ActionAndOutcome(uint32_t state) {
  switch (state) {
    case 1:
      return {"apply", "ok"};
    case 2:
      return {"apply", "refused"};
    case 3:
      return {"stop", "ok"};
    case 4:
      return {"apply", "unchecked"};
    default:
      // The job runs without a plan, or left it: nothing was applied.
      return {"", ""};
  }
}

// Fills in who opened the session, and its run.
Status AddSession(Database& db, std::string_view session_id,
                  v1::AuditEntry& entry) {
  ASSIGN_OR_RETURN(const auto row,
                   db.First("SELECT run_id, who, peer FROM sessions"
                            " WHERE session_id = ?",
                            session_id));
  if (!row) return OkStatus();
  entry.set_run_id(std::string(row->Text(0)));
  entry.set_who(std::string(row->Text(1)));
  entry.set_peer(std::string(row->Text(2)));
  return OkStatus();
}

}  // namespace

v1::AuditEntry NewEntry(const Caller& caller, std::string_view action,
                        const std::string& run_id, std::string subject) {
  v1::AuditEntry entry;
  entry.set_who(caller.who);
  entry.set_peer(caller.peer);
  entry.set_action(std::string(action));
  entry.set_run_id(run_id);
  entry.set_subject(std::move(subject));
  return entry;
}

Status InsertAudit(Database& db, const v1::AuditEntry& entry, int64_t kept) {
  ASSIGN_OR_RETURN(Statement insert,
                   db.Prepare("INSERT INTO audit (at_ns, who, peer, action,"
                              " run_id, subject, outcome, detail)"
                              " VALUES (?, ?, ?, ?, ?, ?, ?, ?) RETURNING id"));
  const std::array<std::string, 4> texts = {
      ValidUtf8(entry.who(), kMostTextBytes),
      ValidUtf8(entry.peer(), kMostTextBytes),
      ValidUtf8(entry.run_id(), kMostTextBytes),
      ValidUtf8(entry.subject(), kMostTextBytes)};
  RETURN_IF_ERROR(insert.BindAll(
      RealtimeNs(), texts[0], texts[1], entry.action(), texts[2], texts[3],
      entry.outcome(), ValidUtf8(entry.detail(), kMostDetailBytes)));
  ASSIGN_OR_RETURN(bool row, insert.Step());
  const int64_t id = row ? insert.Int(0) : 0;
  while (row) {
    ASSIGN_OR_RETURN(row, insert.Step());
  }
  return db.Run("DELETE FROM audit WHERE id <= ?", id - kept);
}

Status InsertApplied(Database& db, std::string_view session_id,
                     const v1::PlanState& state) {
  const auto [action, outcome] = ActionAndOutcome(state.state());
  if (action.empty()) return OkStatus();
  v1::AuditEntry entry;
  RETURN_IF_ERROR(AddSession(db, session_id, entry));
  entry.set_action(std::string(action));
  entry.set_subject(StrCat("plan ", state.plan_id()));
  entry.set_outcome(std::string(outcome));
  entry.set_detail(state.why());
  return InsertAudit(db, entry);
}

Status InsertFailedCheck(Database& db, std::string_view session_id,
                         const v1::VerifyReport& check) {
  v1::AuditEntry entry;
  RETURN_IF_ERROR(AddSession(db, session_id, entry));
  entry.set_action("withdraw");
  entry.set_subject(StrCat("plan ", check.plan_id()));
  entry.set_outcome("ok");
  entry.set_detail(StrCat("a check of step ", check.step(), " found ",
                          check.differing(), " differing values"));
  return InsertAudit(db, entry);
}

StatusOr<std::vector<v1::AuditEntry>> LoadAudit(Database& db,
                                                std::string_view run_id,
                                                int64_t limit,
                                                std::string_view owner) {
  ASSIGN_OR_RETURN(
      Statement select,
      db.Select(StrCat("SELECT id, at_ns, who, peer, action, run_id, subject,"
                       " outcome, detail FROM audit",
                       run_id.empty() ? " WHERE ?1 = ''" : " WHERE run_id = ?1",
                       " AND (?3 = '' OR run_id IN"
                       "  (SELECT run_id FROM runs WHERE owner = ?3))"
                       " ORDER BY id DESC LIMIT ?2"),
                run_id, limit, owner));
  return select.All([](const Statement& row) {
    v1::AuditEntry entry;
    entry.set_id(row.Int(0));
    entry.set_at_ns(row.Int(1));
    entry.set_who(std::string(row.Text(2)));
    entry.set_peer(std::string(row.Text(3)));
    entry.set_action(std::string(row.Text(4)));
    entry.set_run_id(std::string(row.Text(5)));
    entry.set_subject(std::string(row.Text(6)));
    entry.set_outcome(std::string(row.Text(7)));
    entry.set_detail(std::string(row.Text(8)));
    return entry;
  });
}

}  // namespace reprise::server
