// SPDX-License-Identifier: Apache-2.0
//
// Brings a database file to the schema of this binary.
//
// Migrations are numbered files that only ever go forward; number n takes the
// schema from n-1 to n, and PRAGMA user_version holds the last one applied.
// Each runs in a transaction of its own, so a crash leaves a whole version. A
// file from a newer binary is refused rather than guessed at.
#pragma once

#include <span>

#include "base/status.h"
#include "server/store/fill.h"
#include "server/store/sqlite.h"

namespace reprise::server {

struct Migration {
  const char* name;  // "0001_initial"
  const char* sql;
  Fill fill = nullptr;  // runs behind the SQL
};

// The compiled-in migrations, number 1 first.
std::span<const Migration> Migrations();

// FAILED_PRECONDITION: the file was written by a newer version.
Status Migrate(Database& database, std::span<const Migration> migrations);

}  // namespace reprise::server
