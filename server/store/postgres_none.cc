// SPDX-License-Identifier: Apache-2.0
//
// Instead of postgres_store.cc in builds without PostgreSQL
// (-DREPRISE_POSTGRES=OFF).
#include "server/store/postgres_store.h"

namespace reprise::server {

Status CheckPostgresUrl(const std::string&) {
  return FailedPrecondition(
      "--store: this reprised was built without PostgreSQL; take one that was "
      "built with libpq-dev (REPRISE_POSTGRES=ON)");
}

StatusOr<std::unique_ptr<Store>> OpenPostgresStore(
    const StoreOptions& options) {
  return CheckPostgresUrl(options.url);
}

}  // namespace reprise::server
