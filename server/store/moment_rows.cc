// SPDX-License-Identifier: Apache-2.0
#include "server/store/moment_rows.h"

namespace reprise::server {

Status InsertMoments(Database& db, const Producer& producer,
                     const v1::Columns& columns) {
  if (columns.moments_size() == 0) return OkStatus();
  ASSIGN_OR_RETURN(Statement insert,
                   db.Prepare("INSERT INTO moments (run_id, session_id, report)"
                              " VALUES (?, ?, ?)"));
  for (const v1::Moment& moment : columns.moments()) {
    const std::string bytes = moment.SerializeAsString();
    RETURN_IF_ERROR(
        insert.Run(producer.run_id, producer.session_id, Blob{bytes}));
  }
  return OkStatus();
}

StatusOr<std::vector<MomentRow>> LoadMoments(Database& db,
                                             std::string_view run_id,
                                             int64_t limit) {
  ASSIGN_OR_RETURN(
      Statement select,
      db.Prepare("SELECT m.session_id, s.rank, s.realtime_ns - s.monotonic_ns,"
                 " m.report FROM moments m"
                 " JOIN sessions s ON s.session_id = m.session_id"
                 " WHERE m.run_id = ? ORDER BY m.id DESC LIMIT ?"));
  RETURN_IF_ERROR(select.BindAll(run_id, limit));
  std::vector<MomentRow> rows;
  while (true) {
    ASSIGN_OR_RETURN(const bool row, select.Step());
    if (!row) return rows;
    MomentRow& moment = rows.emplace_back();
    moment.session_id = select.Text(0);
    moment.rank = static_cast<uint32_t>(select.Int(1));
    moment.monotonic_to_unix_ns = select.Int(2);
    moment.moment.ParseFromString(std::string(select.Bytes(3)));
  }
}

}  // namespace reprise::server
