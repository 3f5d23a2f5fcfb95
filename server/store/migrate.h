// SPDX-License-Identifier: Apache-2.0
//
// Migrates a database to the schema of this binary.
//
// Migrations are numbered files that only go forward; number n takes the schema
// from n-1 to n, and the database keeps the number of the last one applied
// (SQLite: PRAGMA user_version). The first one makes the schema of the first
// release. After a crash the database is at a valid version. One from a newer
// binary, or from before the first release, is refused.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "base/status.h"
#include "server/store/database.h"

namespace reprise::server {

struct Migration {
  int64_t number;
  const char* name;  // "0007_schema"
  const char* sql;
};

// The compiled-in migrations, in their order.
std::span<const Migration> Migrations();

// postgres.sql.
extern const std::string_view kPostgresAdditions;

// Applies the missing migrations, each in its own transaction.
// FAILED_PRECONDITION: a newer version wrote the database, or one from before
// the first release.
Status Migrate(Database& database, std::span<const Migration> migrations);

// DATA_LOSS: the database at `place` has the right version, but lacks a table of
// the compiled-in migrations. `has` answers for the name of one with a row.
Status CheckTables(Database& database, const std::string& place,
                   std::string_view has);

// The same as Migrate in the transaction that the caller has begun.
Status MigrateInTransaction(Database& database,
                            std::span<const Migration> migrations);

}  // namespace reprise::server
