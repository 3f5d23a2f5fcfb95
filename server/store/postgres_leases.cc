// SPDX-License-Identifier: Apache-2.0
#include "server/store/postgres_leases.h"

#include "base/str_cat.h"

namespace reprise::server {

namespace {

constexpr size_t kMaxIdle = 4;

// Runs one statement about a lease; returns whether it found a row.
StatusOr<bool> Ask(PostgresConnection& connection, const char* sql,
                   const std::string& name) {
  Database db = PostgresDatabase(connection);
  ASSIGN_OR_RETURN(Statement statement, db.Prepare(sql));
  RETURN_IF_ERROR(statement.BindAll(name));
  return statement.Step();
}

}  // namespace

class PostgresLeases::Held final : public Lease {
 public:
  Held(std::shared_ptr<Pool> pool,
       std::unique_ptr<PostgresConnection> connection, std::string name)
      : pool_(std::move(pool)),
        connection_(std::move(connection)),
        name_(std::move(name)) {}

  ~Held() override {
    const bool removed =
        Ask(*connection_, "DELETE FROM reprise_leases WHERE name = ?", name_)
            .ok() &&
        connection_->Execute("NOTIFY reprise_leases; COMMIT").ok();
    // Else the server gives it back, when the connection closes.
    if (!removed) return;
    const std::lock_guard lock(pool_->mutex);
    if (pool_->idle.size() < kMaxIdle) {
      pool_->idle.push_back(std::move(connection_));
    }
  }

 private:
  const std::shared_ptr<Pool> pool_;
  std::unique_ptr<PostgresConnection> connection_;
  const std::string name_;
};

StatusOr<std::unique_ptr<Lease>> PostgresLeases::Try(const std::string& name) {
  std::unique_ptr<PostgresConnection> connection;
  {
    const std::lock_guard lock(pool_->mutex);
    if (!pool_->idle.empty()) {
      connection = std::move(pool_->idle.back());
      pool_->idle.pop_back();
    }
  }
  constexpr char kAdd[] =
      "INSERT INTO reprise_leases VALUES (?) ON CONFLICT DO NOTHING";
  if (!connection || !Ask(*connection, kAdd, name).ok()) {
    ASSIGN_OR_RETURN(connection, PostgresConnection::Open(pool_->url));
    RETURN_IF_ERROR(Ask(*connection, kAdd, name).status());
  }
  RETURN_IF_ERROR(
      connection
          ->Execute("BEGIN; SET LOCAL idle_in_transaction_session_timeout = 0")
          .status());
  ASSIGN_OR_RETURN(const bool locked,
                   Ask(*connection,
                       "SELECT name FROM reprise_leases WHERE name = ?"
                       " FOR UPDATE SKIP LOCKED",
                       name));
  if (locked) {
    return std::unique_ptr<Lease>(new Held(pool_, std::move(connection), name));
  }
  RETURN_IF_ERROR(connection->Execute("ROLLBACK").status());
  const std::lock_guard lock(pool_->mutex);
  if (pool_->idle.size() < kMaxIdle) {
    pool_->idle.push_back(std::move(connection));
  }
  return std::unique_ptr<Lease>();
}

}  // namespace reprise::server
