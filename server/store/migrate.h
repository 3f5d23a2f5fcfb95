// SPDX-License-Identifier: Apache-2.0
//
// Migrates a database file to the schema of this binary.
//
// Migrations are numbered files that only go forward; number n takes the schema
// from n-1 to n, and PRAGMA user_version holds the last one applied. Each runs
// in its own transaction, so after a crash the file is at a valid version. A
// file from a newer binary is refused.
#pragma once

#include <span>

#include "base/status.h"
#include "server/store/fill.h"
#include "server/store/sqlite.h"

namespace reprise::server {

struct Migration {
  const char* name;  // "0001_initial"
  const char* sql;
  Fill fill = nullptr;  // runs after the SQL
};

// The compiled-in migrations, number 1 first.
std::span<const Migration> Migrations();

// Applies the missing migrations. FAILED_PRECONDITION: a newer version wrote
// the file.
Status Migrate(Database& database, std::span<const Migration> migrations);

}  // namespace reprise::server
