// SPDX-License-Identifier: Apache-2.0
#include "server/store/verdict_rows.h"

#include "base/str_cat.h"

namespace reprise::server {

namespace {

// Counted up where the same reports make another verdict within a release.
constexpr int kWording = 2;

}  // namespace

StatusOr<std::string> VerdictSource(Database& db, const v1::Run& run) {
  ASSIGN_OR_RETURN(
      Statement select,
      db.Prepare("SELECT (SELECT max(id) FROM steps WHERE run_id = ?1),"
                 " (SELECT max(id) FROM checks WHERE run_id = ?1),"
                 " (SELECT max(id) FROM plan_states WHERE run_id = ?1),"
                 // Plans of a forwarded run may come after the reports.
                 " (SELECT count(*) FROM plans WHERE plan_id IN"
                 "  (SELECT plan_id FROM plan_states WHERE run_id = ?1))"));
  RETURN_IF_ERROR(select.BindAll(run.run_id()));
  ASSIGN_OR_RETURN(const bool row, select.Step());
  if (!row) return Internal("the newest reports cannot be read");
  return StrCat(REPRISE_VERSION, "/", kWording, " ", select.Int(0), " ",
                select.Int(1), " ", select.Int(2), " ", select.Int(3), " ",
                static_cast<int64_t>(run.state()), " ",
                run.process_end().exit_code(), " ", run.plan_id());
}

StatusOr<std::optional<v1::Verdict>> LoadVerdict(Database& db,
                                                 std::string_view run_id,
                                                 std::string_view source) {
  std::optional<v1::Verdict> verdict;
  ASSIGN_OR_RETURN(
      Statement select,
      db.Prepare("SELECT body FROM verdicts WHERE run_id = ? AND made_of = ?"));
  RETURN_IF_ERROR(select.BindAll(run_id, source));
  ASSIGN_OR_RETURN(const bool row, select.Step());
  if (!row) return verdict;
  const std::string_view body = select.Bytes(0);
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
  ASSIGN_OR_RETURN(Statement upsert,
                   db.Prepare("INSERT INTO verdicts (run_id, made_of, body)"
                              " SELECT run_id, ?2, ?3 FROM runs"
                              " WHERE run_id = ?1"
                              " ON CONFLICT (run_id) DO UPDATE SET"
                              " made_of = excluded.made_of,"
                              " body = excluded.body"));
  const std::string bytes = verdict.SerializeAsString();
  return upsert.Run(run_id, source, Blob{bytes});
}

}  // namespace reprise::server
