// SPDX-License-Identifier: Apache-2.0
#include "server/store/store.h"

#include <chrono>

#include "server/store/postgres_store.h"
#include "server/store/sqlite_store.h"

namespace reprise::server {

int64_t RealtimeNs() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

StatusOr<std::unique_ptr<Store>> Store::Open(const StoreOptions& options) {
  return options.url.empty() ? OpenSqliteStore(options)
                             : OpenPostgresStore(options);
}

}  // namespace reprise::server
