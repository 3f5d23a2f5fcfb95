// SPDX-License-Identifier: Apache-2.0
//
// Leases over all daemons of a PostgreSQL store. A lease is the lock on a row of
// `reprise_leases` in an open transaction (FOR UPDATE SKIP LOCKED), so the
// server takes it back when the daemon dies or its connection breaks.
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/status.h"
#include "server/store/postgres.h"
#include "server/store/store.h"

namespace reprise::server {

class PostgresLeases {
 public:
  explicit PostgresLeases(std::string url)
      : pool_(new Pool{.url = std::move(url)}) {}

  // As Store::TryLease. A lease may outlive this.
  StatusOr<std::unique_ptr<Lease>> Try(const std::string& name);

 private:
  // Connections without a lease.
  struct Pool {
    const std::string url;
    std::mutex mutex = {};
    std::vector<std::unique_ptr<PostgresConnection>> idle = {};
  };
  class Held;

  const std::shared_ptr<Pool> pool_;
};

}  // namespace reprise::server
