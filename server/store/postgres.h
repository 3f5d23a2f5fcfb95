// SPDX-License-Identifier: Apache-2.0
//
// One connection to PostgreSQL, as a database (database.h).
//
// Statements are prepared by the server once per connection, and their values
// travel in binary. A connection that broke stays broken: `lost` tells, and its
// owner makes another (postgres_store.h).
//
// Text that PostgreSQL cannot hold is changed: NUL and bytes that are not UTF-8
// become U+FFFD.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "server/store/database.h"
#include "server/store/libpq.h"

namespace reprise::server {

class PostgresConnection {
 public:
  // `url` is what libpq takes. UNAVAILABLE: nothing answers; PERMISSION_DENIED:
  // not let in.
  static StatusOr<std::unique_ptr<PostgresConnection>> Open(
      const std::string& url);
  ~PostgresConnection();
  PostgresConnection(const PostgresConnection&) = delete;
  PostgresConnection& operator=(const PostgresConnection&) = delete;

  struct Clear {
    const Libpq* pq;
    void operator()(PGresult* result) const { pq->PQclear(result); }
  };
  using Result = std::unique_ptr<PGresult, Clear>;

  struct Values {
    std::vector<Oid> types;
    std::vector<const char*> data;
    std::vector<int> sizes;
    std::vector<int> binary;
  };

  // Runs statements without parameters; the result is the last one's, as text.
  StatusOr<Result> Execute(const std::string& sql);
  // Runs one statement, which is prepared if it was not yet.
  StatusOr<Result> Run(const std::string& sql, const Values& values);
  // Runs one statement that is not worth preparing.
  StatusOr<Result> RunOnce(const std::string& sql, const Values& values);

  bool lost() const {
    return broken_ || pq_.PQstatus(connection_) != CONNECTION_OK;
  }

  // "host:port/database", or the socket's folder.
  const std::string& place() const { return place_; }
  int backend_pid() const { return pq_.PQbackendPID(connection_); }
  PGconn* raw() const { return connection_; }
  const Libpq& pq() const { return pq_; }

  // A name that no other cursor of this connection has.
  std::string NewCursor() { return "reprise_" + std::to_string(++cursors_); }

  // Rows that the last statement changed.
  int64_t changes = 0;

 private:
  PostgresConnection(const Libpq& pq, PGconn* connection);
  StatusOr<Result> Check(PGresult* result);

  const Libpq& pq_;
  PGconn* const connection_;
  std::string place_;
  std::map<std::string, std::string> prepared_;  // SQL with types: name
  uint64_t cursors_ = 0;
  bool broken_ = false;
};

// A database on a connection that outlives it.
Database PostgresDatabase(PostgresConnection& connection);

}  // namespace reprise::server
