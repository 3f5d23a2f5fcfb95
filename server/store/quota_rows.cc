// SPDX-License-Identifier: Apache-2.0
#include "server/store/quota_rows.h"

#include "base/str_cat.h"

namespace reprise::server {

StatusOr<StoredRow> LoadStored(Database& db, std::string_view run_id) {
  ASSIGN_OR_RETURN(const auto row,
                   db.First("SELECT stored_bytes, refused_records,"
                            " refused_bytes FROM runs WHERE run_id = ?",
                            run_id));
  if (!row) return StoredRow{};
  return StoredRow{.bytes = row->Int(0),
                   .refused_records = static_cast<uint64_t>(row->Int(1)),
                   .refused_bytes = row->Int(2)};
}

Status AddStored(Database& db, std::string_view run_id, int64_t bytes) {
  return db.Run(
      "UPDATE runs SET stored_bytes = stored_bytes + ? WHERE run_id = ?", bytes,
      run_id);
}

Status TakeRoom(Database& db, const Quota& quota, std::string_view run_id,
                std::string_view what, int64_t bytes) {
  ASSIGN_OR_RETURN(const StoredRow stored, LoadStored(db, run_id));
  if (bytes > 0 && !quota.HasRoomForReports(stored.bytes, bytes)) {
    return ResourceExhausted(
        StrCat("run ", run_id, " has used ", FormatBytes(stored.bytes),
               " of its quota of ", FormatBytes(quota.max_bytes()),
               " (--max-run-bytes): there is no room for a ", what, " of ",
               FormatBytes(bytes)));
  }
  return AddStored(db, run_id, bytes);
}

Status AddRefused(Database& db, std::string_view run_id, uint64_t records,
                  int64_t bytes) {
  return db.Run(
      "UPDATE runs SET refused_records = refused_records + ?,"
      " refused_bytes = refused_bytes + ? WHERE run_id = ?",
      records, bytes, run_id);
}

int64_t ReportBytes(const v1::Columns& columns) {
  size_t bytes = 0;
  for (const v1::StepReport& step : columns.steps()) {
    bytes += step.ByteSizeLong();
  }
  for (const v1::VerifyReport& check : columns.checks()) {
    bytes += check.ByteSizeLong();
  }
  for (const v1::PlanState& state : columns.states()) {
    bytes += state.ByteSizeLong();
  }
  for (const v1::Moment& moment : columns.moments()) {
    bytes += moment.ByteSizeLong();
  }
  return static_cast<int64_t>(bytes);
}

Status InsertRefused(Database& db, const Producer& producer, uint64_t seq) {
  RETURN_IF_ERROR(
      db.Run("UPDATE lost SET to_seq = ?1 WHERE session_id ="
             " ?2 AND producer_epoch = ?3 AND reason = ?4"
             " AND to_seq = ?5",
             seq, producer.session_id, producer.epoch, kQuotaReason, seq - 1));
  if (db.changes() == 0) {
    RETURN_IF_ERROR(
        db.Run("INSERT INTO lost VALUES (?, ?, ?, ?, ?) ON CONFLICT DO NOTHING",
               producer.session_id, producer.epoch, seq, seq, kQuotaReason));
  }
  return db.Run(
      "UPDATE runs SET lost_chunks = lost_chunks + 1 WHERE run_id = ?",
      producer.run_id);
}

}  // namespace reprise::server
