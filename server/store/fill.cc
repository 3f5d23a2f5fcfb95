// SPDX-License-Identifier: Apache-2.0
#include "server/store/fill.h"

#include <cstdint>
#include <string>
#include <string_view>

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

Status FillImported(Database& database) {
  constexpr std::string_view kLabel = "\nimported=";
  ASSIGN_OR_RETURN(Statement select,
                   database.Prepare("SELECT run_id, labels FROM sessions"));
  ASSIGN_OR_RETURN(Statement update,
                   database.Prepare("UPDATE runs SET imported = ?"
                                    " WHERE run_id = ?"));
  while (true) {
    ASSIGN_OR_RETURN(const bool row, select.Step());
    if (!row) return OkStatus();
    const std::string lines = "\n" + std::string(select.Text(1));
    const size_t at = lines.find(kLabel);
    if (at == std::string::npos) continue;
    const size_t begin = at + kLabel.size();
    const std::string value =
        lines.substr(begin, lines.find('\n', begin) - begin);
    RETURN_IF_ERROR(update.Run(value, std::string(select.Text(0))));
  }
}

}  // namespace reprise::server
