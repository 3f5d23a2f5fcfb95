// SPDX-License-Identifier: Apache-2.0
//
// The schema of a store in PostgreSQL: the tables of migrations/*.sql, in
// PostgreSQL's words, and what postgres.sql adds.
#pragma once

#include "base/status.h"
#include "server/store/postgres.h"

namespace reprise::server {

// Creates or migrates the schema, under an advisory lock, in one transaction.
// FAILED_PRECONDITION: a newer version wrote it. DATA_LOSS: a table is missing.
Status MigratePostgres(PostgresConnection& connection);

}  // namespace reprise::server
