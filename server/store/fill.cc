// SPDX-License-Identifier: Apache-2.0
#include "server/store/fill.h"

#include <cstdint>
#include <string>

#include "reprise/v1/ingest.pb.h"

namespace reprise::server {

Status FillCheckColumns(Database& database) {
  ASSIGN_OR_RETURN(Statement select,
                   database.Prepare("SELECT id, report FROM checks"));
  ASSIGN_OR_RETURN(Statement update,
                   database.Prepare("UPDATE checks SET plan_id = ?, failed = ?"
                                    " WHERE id = ?"));
  while (true) {
    ASSIGN_OR_RETURN(const bool row, select.Step());
    if (!row) return OkStatus();
    const int64_t id = select.Int(0);
    v1::VerifyReport report;
    if (!report.ParseFromString(std::string(select.Bytes(1)))) continue;
    RETURN_IF_ERROR(update.Run(report.plan_id(), report.failed(), id));
  }
}

}  // namespace reprise::server
