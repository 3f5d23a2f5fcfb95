// SPDX-License-Identifier: Apache-2.0
//
// What a migration cannot do in SQL: columns whose values lie in serialized
// reports. Runs in the migration's transaction, right behind its SQL.
#pragma once

#include <string_view>

#include "base/status.h"
#include "server/store/sqlite.h"

namespace reprise::server {

// The columns plan_id and failed of every row of `checks`, from its report. A
// report that cannot be read leaves its row as it is. O(rows).
Status FillCheckColumns(Database& database);

// By name of a migration; nullptr: SQL is all of it.
using Fill = Status (*)(Database&);
constexpr Fill FillOf(std::string_view migration) {
  return migration == "0005_failed_checks" ? FillCheckColumns : nullptr;
}

}  // namespace reprise::server
