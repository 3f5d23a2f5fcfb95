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

}  // namespace reprise::server
