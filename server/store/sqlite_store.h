// SPDX-License-Identifier: Apache-2.0
//
// A store in one SQLite file, with a write-ahead log. Keep reads short, because
// an open reader prevents the log from shrinking.
//
// Disk full: a failed Write sets `degraded`. A Write that succeeds a few seconds
// later clears it (between large writes that fail, small ones may succeed).
// Reading still works.
#pragma once

#include <memory>

#include "base/status.h"
#include "server/store/store.h"

namespace reprise::server {

StatusOr<std::unique_ptr<Store>> OpenSqliteStore(const StoreOptions& options);

}  // namespace reprise::server
