// SPDX-License-Identifier: Apache-2.0
#include "server/store/run_rows.h"

#include "base/str_cat.h"

namespace reprise::server {
namespace {

constexpr std::string_view kSelect =
    "SELECT run_id, name, host, pid, world, state, started_ns, ended_ns, steps,"
    " records, dropped, lost_chunks, graph_id, plan_id, stored_bytes,"
    " refused_records, refused_bytes, exit_code, exit_signal, imported, owner"
    " FROM runs ";

v1::Run FromRow(const Statement& row) {
  v1::Run run;
  run.set_run_id(std::string(row.Text(0)));
  run.set_name(std::string(row.Text(1)));
  run.set_host(std::string(row.Text(2)));
  run.set_pid(static_cast<uint32_t>(row.Int(3)));
  run.set_world(static_cast<uint32_t>(row.Int(4)));
  run.set_state(static_cast<v1::RunState>(row.Int(5)));
  run.set_started_ns(row.Int(6));
  run.set_ended_ns(row.Int(7));
  run.set_steps(static_cast<uint64_t>(row.Int(8)));
  run.set_records(static_cast<uint64_t>(row.Int(9)));
  run.set_dropped(static_cast<uint64_t>(row.Int(10)));
  run.set_lost_chunks(static_cast<uint64_t>(row.Int(11)));
  run.set_graph_id(std::string(row.Text(12)));
  run.set_plan_id(std::string(row.Text(13)));
  v1::Stored& stored = *run.mutable_stored();
  stored.set_bytes(row.Int(14));
  stored.set_refused_records(static_cast<uint64_t>(row.Int(15)));
  stored.set_refused_bytes(row.Int(16));
  if (row.Int(17) >= 0) {
    run.mutable_process_end()->set_exit_code(static_cast<int32_t>(row.Int(17)));
    run.mutable_process_end()->set_signal(static_cast<int32_t>(row.Int(18)));
    // Its agent said goodbye, and then the program exited with an error.
    if (row.Int(17) != 0 && run.state() == v1::RUN_STATE_FINISHED) {
      run.set_state(v1::RUN_STATE_FAILED);
    }
  }
  run.set_imported(std::string(row.Text(19)));
  run.set_owner(std::string(row.Text(20)));
  return run;
}

// Counted up where the same reports make another verdict within a release.
constexpr int kWording = 2;

}  // namespace

Status EnsureRun(Database& db, std::string_view run_id, int64_t now_ns,
                 std::string_view owner) {
  return db.Run(
      "INSERT INTO runs (run_id, name, state, started_ns, owner)"
      " VALUES (?1, ?1, ?2, ?3, ?4) ON CONFLICT DO NOTHING",
      run_id, static_cast<int64_t>(v1::RUN_STATE_RUNNING), now_ns, owner);
}

Status CheckOwner(Database& db, std::string_view run_id, const Caller& caller) {
  if (caller.access.role == Role::kAdmin) return OkStatus();
  ASSIGN_OR_RETURN(const auto row,
                   db.First("SELECT owner FROM runs WHERE run_id = ?", run_id));
  if (!row || row->Text(0) == caller.who) return OkStatus();
  return AlreadyExists(StrCat("run_id: the run \"", run_id, "\" is not one of ",
                              caller.who, "'s; choose another id"));
}

Status ClaimRun(Database& db, std::string_view run_id, const Caller& caller,
                int64_t now_ns) {
  RETURN_IF_ERROR(CheckOwner(db, run_id, caller));
  return EnsureRun(db, run_id, now_ns, caller.who);
}

namespace {

Status NoRun(std::string_view text) {
  return NotFound(StrCat("there is no run \"", text,
                         "\"; `reprise show latest` shows the newest"));
}

// A job of several machines is one run, under the id of one of its launchers;
// sessions of the others say in a label as what they were launched. Returns ""
// if none says this.
StatusOr<std::string> RunLaunchedAs(Database& db, std::string_view text,
                                    std::string_view owner) {
  ASSIGN_OR_RETURN(
      const auto row,
      db.First("SELECT run_id FROM sessions"
               " WHERE replace(?1 || labels, ?2, '') <> ?1 || labels"
               " AND (?3 = '' OR run_id IN"
               "  (SELECT run_id FROM runs WHERE owner = ?3)) LIMIT 1",
               "\n", StrCat("\nlaunch=", text, "\n"), owner));
  return row ? std::string(row->Text(0)) : std::string();
}

}  // namespace

std::string OwnersRun(std::string_view run_id, std::string_view owner) {
  return StrCat("=", owner, "/", run_id);
}

std::string_view IdIn(std::string_view text) {
  return text.starts_with('=') ? text.substr(text.find('/') + 1) : text;
}

StatusOr<std::string> ResolveRunId(Database& db, std::string_view text) {
  if (!text.starts_with('=')) return ResolveRunOf(db, text, "");
  std::string run_id(IdIn(text));
  ASSIGN_OR_RETURN(const auto row,
                   db.First("SELECT owner FROM runs WHERE run_id = ?", run_id));
  if (row && OwnersRun(run_id, row->Text(0)) == text) return run_id;
  return NoRun(run_id);
}

StatusOr<std::string> ResolveRunOf(Database& db, std::string_view text,
                                   std::string_view owner) {
  if (text.empty()) {
    return InvalidArgument(
        "run_id: must not be empty; write a run id, the beginning of one or "
        "\"latest\"");
  }
  if (text == "latest") {
    ASSIGN_OR_RETURN(const auto row,
                     db.First("SELECT run_id FROM runs"
                              " WHERE ?1 = '' OR owner = ?1"
                              " ORDER BY started_ns DESC, run_id LIMIT 1",
                              owner));
    if (!row) return NotFound("there is no run yet");
    return std::string(row->Text(0));
  }
  // substr instead of LIKE: an id may contain LIKE's wildcards.
  ASSIGN_OR_RETURN(Statement matches,
                   db.Select("SELECT run_id, run_id = ?1 FROM runs"
                             " WHERE substr(run_id, 1, length(?1)) = ?1"
                             " AND (?2 = '' OR owner = ?2)"
                             " ORDER BY run_id = ?1 DESC, run_id LIMIT 2",
                             text, owner));
  ASSIGN_OR_RETURN(bool row, matches.Step());
  if (!row) {
    ASSIGN_OR_RETURN(std::string launched, RunLaunchedAs(db, text, owner));
    if (!launched.empty()) return launched;
    return NoRun(text);
  }
  std::string first(matches.Text(0));
  if (matches.Int(1) != 0) return first;
  ASSIGN_OR_RETURN(row, matches.Step());
  if (row) {
    return InvalidArgument(StrCat("run_id: \"", text,
                                  "\" is the beginning of several runs, such "
                                  "as ",
                                  first, " and ", matches.Text(0),
                                  "; write more of it"));
  }
  return first;
}

StatusOr<v1::Run> LoadRun(Database& db, std::string_view run_id) {
  ASSIGN_OR_RETURN(const auto row,
                   db.First(StrCat(kSelect, "WHERE run_id = ?"), run_id));
  if (!row) return NotFound(StrCat("there is no run \"", run_id, "\""));
  return FromRow(*row);
}

StatusOr<v1::Run> LoadNamedRun(Database& db, std::string_view text) {
  ASSIGN_OR_RETURN(const std::string run_id, ResolveRunId(db, text));
  return LoadRun(db, run_id);
}

StatusOr<std::vector<v1::Run>> LoadRuns(Database& db, int64_t limit) {
  ASSIGN_OR_RETURN(
      Statement select,
      db.Select(StrCat(kSelect, "ORDER BY started_ns DESC, run_id LIMIT ?"),
                limit));
  return select.All([](const Statement& row) { return FromRow(row); });
}

StatusOr<int64_t> CountRuns(Database& db) {
  return LoadNumber(db, "SELECT count(*) FROM runs");
}

Status RemoveRun(Database& db, std::string_view run_id) {
  constexpr std::string_view kOfSessions[] = {"capabilities", "streams",
                                              "chunks", "lost", "names"};
  constexpr std::string_view kOfRun[] = {"steps",   "checks",  "plan_states",
                                         "moments", "windows", "sessions",
                                         "verdicts"};
  // Plans refer to graphs, so they go first.
  constexpr std::string_view kGraph =
      "graph_id = (SELECT graph_id FROM runs r WHERE r.run_id = ?1"
      " AND NOT EXISTS (SELECT 1 FROM runs o WHERE o.graph_id = r.graph_id"
      "  AND o.run_id <> ?1)"
      " AND NOT EXISTS (SELECT 1 FROM graph_owners u"
      "  WHERE u.graph_id = r.graph_id AND u.owner <> r.owner))";
  std::vector<std::string> statements;
  for (const std::string_view table : kOfSessions) {
    statements.push_back(
        StrCat("DELETE FROM ", table,
               " WHERE session_id IN"
               " (SELECT session_id FROM sessions WHERE run_id = ?1)"));
  }
  for (const std::string_view table : kOfRun) {
    statements.push_back(StrCat("DELETE FROM ", table, " WHERE run_id = ?1"));
  }
  statements.push_back(StrCat("DELETE FROM plans WHERE ", kGraph));
  statements.push_back(StrCat("DELETE FROM graphs WHERE ", kGraph));
  statements.push_back(StrCat("DELETE FROM graph_owners WHERE ", kGraph));
  statements.push_back("DELETE FROM runs WHERE run_id = ?1");
  for (const std::string& text : statements) {
    RETURN_IF_ERROR(db.Run(text, run_id));
  }
  return OkStatus();
}

Status SetRunGraph(Database& db, std::string_view run_id,
                   std::string_view graph_id) {
  return db.Run("UPDATE runs SET graph_id = ? WHERE run_id = ?", graph_id,
                run_id);
}

Status SetRunEnd(Database& db, std::string_view run_id,
                 const v1::ProcessEnd& end) {
  return db.Run(
      "UPDATE runs SET exit_code = ?1, exit_signal = ?2 WHERE run_id = ?3"
      " AND NOT (?1 = 0 AND exit_code > 0)",
      end.exit_code(), end.signal(), run_id);
}

Status SetRunPlan(Database& db, std::string_view run_id,
                  std::string_view plan_id) {
  return db.Run("UPDATE runs SET plan_id = ? WHERE run_id = ?", plan_id,
                run_id);
}

StatusOr<std::string> VerdictSource(Database& db, const v1::Run& run) {
  ASSIGN_OR_RETURN(
      const auto row,
      db.First("SELECT (SELECT max(id) FROM steps WHERE run_id = ?1),"
               " (SELECT max(id) FROM checks WHERE run_id = ?1),"
               " (SELECT max(id) FROM plan_states WHERE run_id = ?1),"
               // Plans of a forwarded run may come after the reports.
               " (SELECT count(*) FROM plans WHERE plan_id IN"
               "  (SELECT plan_id FROM plan_states WHERE run_id = ?1))",
               run.run_id()));
  if (!row) return Internal("the newest reports cannot be read");
  return StrCat(REPRISE_VERSION, "/", kWording, " ", row->Int(0), " ",
                row->Int(1), " ", row->Int(2), " ", row->Int(3), " ",
                static_cast<int64_t>(run.state()), " ",
                run.process_end().exit_code(), " ", run.plan_id());
}

StatusOr<std::optional<v1::Verdict>> LoadVerdict(Database& db,
                                                 std::string_view run_id,
                                                 std::string_view source) {
  std::optional<v1::Verdict> verdict;
  ASSIGN_OR_RETURN(
      const auto row,
      db.First("SELECT body FROM verdicts WHERE run_id = ? AND made_of = ?",
               run_id, source));
  if (!row) return verdict;
  const std::string_view body = row->Bytes(0);
  verdict.emplace();
  // A damaged one is made again.
  if (!verdict->ParseFromArray(body.data(), static_cast<int>(body.size()))) {
    verdict.reset();
  }
  return verdict;
}

Status SaveVerdict(Database& db, std::string_view run_id,
                   std::string_view source, const v1::Verdict& verdict) {
  // Of a run that was removed meanwhile nothing is kept.
  const std::string bytes = verdict.SerializeAsString();
  return db.Run(
      "INSERT INTO verdicts (run_id, made_of, body)"
      " SELECT run_id, ?2, ?3 FROM runs WHERE run_id = ?1"
      " ON CONFLICT (run_id) DO UPDATE SET made_of = excluded.made_of,"
      " body = excluded.body",
      run_id, source, Blob{bytes});
}

}  // namespace reprise::server
