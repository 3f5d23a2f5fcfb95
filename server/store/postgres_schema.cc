// SPDX-License-Identifier: Apache-2.0
#include "server/store/postgres_schema.h"

#include <string>
#include <vector>

#include "base/crc32c.h"
#include "base/str_cat.h"
#include "server/store/migrate.h"
#include "server/store/postgres_additions.h"
#include "server/store/postgres_dialect.h"

namespace reprise::server {

namespace {

// Of advisory locks: "reprise" as bytes, and what is locked.
constexpr char kSchemaLock[] = "SELECT pg_advisory_xact_lock(1919250546, 1)";

// A database may have the right version but lack tables.
Status CheckPostgresTables(Database& db, const std::string& place) {
  ASSIGN_OR_RETURN(Database fresh, Database::Open(":memory:"));
  RETURN_IF_ERROR(Migrate(fresh, Migrations()));
  ASSIGN_OR_RETURN(Statement wanted,
                   fresh.Prepare("SELECT name FROM sqlite_schema"
                                 " WHERE type = 'table' ORDER BY name"));
  ASSIGN_OR_RETURN(Statement has,
                   db.Prepare("SELECT to_regclass(?) IS NOT NULL"));
  while (true) {
    ASSIGN_OR_RETURN(const bool more, wanted.Step());
    if (!more) return OkStatus();
    const std::string name(wanted.Text(0));
    RETURN_IF_ERROR(has.BindAll(name));
    ASSIGN_OR_RETURN(const bool row, has.Step());
    if (row && has.Int(0) != 0) continue;
    return {Code::kDataLoss,
            StrCat(place, ": the table ", name, " is missing")};
  }
}

Status ApplyAdditions(Database& db) {
  const int64_t digest = Crc32c(kPostgresAdditions);
  {
    ASSIGN_OR_RETURN(Statement select,
                     db.Prepare("SELECT digest FROM reprise_additions"));
    ASSIGN_OR_RETURN(const bool row, select.Step());
    if (row && select.Int(0) == digest) return OkStatus();
  }
  RETURN_IF_ERROR(db.Execute(std::string(kPostgresAdditions)));
  RETURN_IF_ERROR(db.Execute("DELETE FROM reprise_additions"));
  return db.Execute(
      StrCat("INSERT INTO reprise_additions VALUES (", digest, ")"));
}

}  // namespace

Status MigratePostgres(PostgresConnection& connection) {
  Database db = PostgresDatabase(connection);
  return db.Transaction([&]() -> Status {
    RETURN_IF_ERROR(db.Execute(kSchemaLock));
    RETURN_IF_ERROR(db.Execute(
        "CREATE TABLE IF NOT EXISTS reprise_schema (version BIGINT NOT NULL);"
        "CREATE TABLE IF NOT EXISTS reprise_additions (digest BIGINT NOT "
        "NULL)"));
    std::vector<std::string> texts;
    std::vector<Migration> migrations;
    for (const Migration& migration : Migrations()) {
      texts.push_back(PostgresSchema(migration.sql));
    }
    for (size_t i = 0; i < texts.size(); ++i) {
      migrations.push_back(
          {Migrations()[i].number, Migrations()[i].name, texts[i].c_str()});
    }
    RETURN_IF_ERROR(MigrateInTransaction(db, migrations));
    RETURN_IF_ERROR(ApplyAdditions(db));
    return CheckPostgresTables(db, connection.place());
  });
}

}  // namespace reprise::server
