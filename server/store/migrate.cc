// SPDX-License-Identifier: Apache-2.0
#include "server/store/migrate.h"

#include "base/str_cat.h"

namespace reprise::server {

Status Migrate(Database& database, std::span<const Migration> migrations) {
  const auto newest = static_cast<int64_t>(migrations.size());
  ASSIGN_OR_RETURN(int64_t version, database.UserVersion());
  if (version > newest) {
    return FailedPrecondition(
        StrCat("the database has schema ", version,
               ", this version of reprised knows up to ", newest,
               "; use the newer reprised or another --data-dir"));
  }
  for (; version < newest; ++version) {
    const Migration& migration = migrations[static_cast<size_t>(version)];
    const Status status = database.Transaction([&]() -> Status {
      RETURN_IF_ERROR(database.Execute(migration.sql));
      if (migration.fill != nullptr) {
        RETURN_IF_ERROR(migration.fill(database));
      }
      return database.Execute(StrCat("PRAGMA user_version=", version + 1));
    });
    if (!status.ok()) {
      return {status.code(),
              StrCat("migration ", migration.name, ": ", status.message())};
    }
  }
  return OkStatus();
}

}  // namespace reprise::server
