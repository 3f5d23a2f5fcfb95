// SPDX-License-Identifier: Apache-2.0
//
// Migrates a database to the schema of this binary.
//
// Migrations are numbered files that only go forward; number n takes the schema
// from n-1 to n, and the database keeps the number of the last one applied
// (SQLite: PRAGMA user_version). After a crash it is at a valid version. A
// database from a newer binary is refused.
#pragma once

#include <span>

#include "base/status.h"
#include "server/store/database.h"
#include "server/store/fill.h"

namespace reprise::server {

struct Migration {
  const char* name;  // "0001_initial"
  const char* sql;
  Fill fill = nullptr;  // runs after the SQL
};

// The compiled-in migrations, number 1 first.
std::span<const Migration> Migrations();

// Applies the missing migrations, each in its own transaction.
// FAILED_PRECONDITION: a newer version wrote the database.
Status Migrate(Database& database, std::span<const Migration> migrations);

// The same in the transaction that the caller has begun.
Status MigrateInTransaction(Database& database,
                            std::span<const Migration> migrations);

}  // namespace reprise::server
