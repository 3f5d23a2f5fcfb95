// SPDX-License-Identifier: Apache-2.0
//
// A store in a PostgreSQL database, for any number of daemons.
//
//   daemon A ─┐  one transaction at a time, over all daemons
//   daemon B ─┼─▶ (an advisory lock that ends with it) ─▶ PostgreSQL
//   daemon C ─┘             ◀── NOTIFY: "run x changed" ──
//
// Because one body writes at a time, ids of rows grow in the order of commits,
// and what a body reads is still so when it commits, as with SQLite.
//
// Loss of the connection: the body fails with UNAVAILABLE and nothing is
// stored; the next call connects again. If the connection breaks during COMMIT,
// the store asks the server afterwards whether that transaction was committed,
// so that the answer is true either way; if the server stays away, the answer
// is UNAVAILABLE, and what is sent again is stored once (by its id or seq).
//
// Several daemons may start at once: the schema is migrated by one of them,
// under an advisory lock, in one transaction.
#pragma once

#include <memory>
#include <string>

#include "base/status.h"
#include "server/store/store.h"

namespace reprise::server {

// INVALID_ARGUMENT: not a URL that libpq takes, or one with a password, which
// every user of the machine could read; FAILED_PRECONDITION: this reprised was
// built without PostgreSQL.
Status CheckPostgresUrl(const std::string& url);

StatusOr<std::unique_ptr<Store>> OpenPostgresStore(const StoreOptions& options);

}  // namespace reprise::server
