// SPDX-License-Identifier: Apache-2.0
#include "server/store/migrate.h"

#include <functional>

#include "base/str_cat.h"

namespace reprise::server {

namespace {

// Runs one migration's work.
using OneMigration = std::function<Status(const std::function<Status()>&)>;

Status Apply(Database& database, std::span<const Migration> migrations,
             const OneMigration& one) {
  const int64_t newest = migrations.back().number;
  ASSIGN_OR_RETURN(const int64_t version, database.UserVersion());
  if (version > newest) {
    return FailedPrecondition(
        StrCat("the database has schema ", version,
               ", this version of reprised knows up to ", newest,
               "; use the newer reprised or another database"));
  }
  if (version > 0 && version < migrations.front().number) {
    return FailedPrecondition(
        StrCat("the database has schema ", version,
               ", which is older than the first release of reprised; move it "
               "away or use another database"));
  }
  for (const Migration& migration : migrations) {
    if (migration.number <= version) continue;
    const Status status = one([&]() -> Status {
      RETURN_IF_ERROR(database.Execute(migration.sql));
      return database.SetUserVersion(migration.number);
    });
    if (!status.ok()) {
      return {status.code(),
              StrCat("migration ", migration.name, ": ", status.message())};
    }
  }
  return OkStatus();
}

}  // namespace

Status Migrate(Database& database, std::span<const Migration> migrations) {
  return Apply(database, migrations, [&](const std::function<Status()>& work) {
    return database.Transaction(work);
  });
}

Status MigrateInTransaction(Database& database,
                            std::span<const Migration> migrations) {
  return Apply(database, migrations,
               [](const std::function<Status()>& work) { return work(); });
}

Status CheckTables(Database& database, const std::string& place,
                   std::string_view has) {
  ASSIGN_OR_RETURN(Database fresh, Database::Open(":memory:"));
  RETURN_IF_ERROR(Migrate(fresh, Migrations()));
  ASSIGN_OR_RETURN(Statement wanted,
                   fresh.Prepare("SELECT name FROM sqlite_schema"
                                 " WHERE type = 'table' ORDER BY name"));
  while (true) {
    ASSIGN_OR_RETURN(const bool more, wanted.Step());
    if (!more) return OkStatus();
    ASSIGN_OR_RETURN(const auto row, database.First(has, wanted.Text(0)));
    if (row) continue;
    return {Code::kDataLoss,
            StrCat(place, ": the table ", wanted.Text(0), " is missing")};
  }
}

}  // namespace reprise::server
