// SPDX-License-Identifier: Apache-2.0
//
// Migration work that SQL cannot do: fills columns whose values are in
// serialized reports. Runs in the migration's transaction, right after its SQL.
#pragma once

#include <string_view>

#include "base/status.h"
#include "server/store/database.h"

namespace reprise::server {

// Sets plan_id and failed in every row of `checks` from its report. Rows whose
// report cannot be parsed are left unchanged. O(rows).
Status FillCheckColumns(Database& database);

// Sets `imported` in every row of `runs` that has a session with that label.
// O(sessions).
Status FillImported(Database& database);

// Returns the fill function of a migration, by name; null if it is SQL only.
using Fill = Status (*)(Database&);
constexpr Fill FillOf(std::string_view migration) {
  if (migration == "0005_failed_checks") return FillCheckColumns;
  if (migration == "0007_process_end") return FillImported;
  return nullptr;
}

}  // namespace reprise::server
