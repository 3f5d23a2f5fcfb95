// SPDX-License-Identifier: Apache-2.0
//
// Hears what other daemons committed (NOTIFY), on a connection and a thread of
// its own; connects again with growing pauses when it breaks.
#pragma once

#include <poll.h>
#include <pthread.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "base/status.h"
#include "server/store/postgres.h"
#include "server/store/store.h"

namespace reprise::server {

using std::chrono::milliseconds;

constexpr milliseconds kFirstPause{100};
constexpr milliseconds kLongestPause{5000};
constexpr int kTurnMs = 200;

constexpr size_t kMaxIdle = 4;

// Runs one statement about a lease; returns whether it found a row.
inline StatusOr<bool> Ask(PostgresConnection& connection, const char* sql,
                          const std::string& name) {
  Database db = PostgresDatabase(connection);
  ASSIGN_OR_RETURN(Statement statement, db.Select(sql, name));
  return statement.Step();
}

class PostgresListener {
 public:
  struct Events {
    // A run was changed by the server process `by`; "" and 0: any may have been,
    // because nothing was heard for a while.
    std::function<void(const std::string& run_id, int by)> changed;
    // A lease was given back.
    std::function<void()> released;
    // Whether PostgreSQL answers.
    std::function<void(const Status&)> connected;
  };

  PostgresListener(std::string url, Events events)
      : url_(std::move(url)),
        events_(std::move(events)),
        thread_([this] { Run(); }) {}

  ~PostgresListener() {
    {
      const std::lock_guard lock(mutex_);
      stop_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }

 private:
  void Run() {
    pthread_setname_np(pthread_self(), "reprise-listen");
    milliseconds pause = kFirstPause;
    while (!Stopped(milliseconds(0))) {
      auto connection = PostgresConnection::Open(url_);
      Status status = connection.status();
      if (status.ok()) {
        status = (*connection)
                     ->Execute("LISTEN reprise_leases; LISTEN reprise_runs")
                     .status();
      }
      events_.connected(status);
      if (status.ok()) {
        pause = kFirstPause;
        events_.changed("", 0);
        Await(**connection);
      } else {
        if (Stopped(pause)) return;
        pause = std::min(pause * 2, kLongestPause);
      }
    }
  }

  // Returns when the connection broke or the listener is to stop.
  void Await(PostgresConnection& connection) {
    const Libpq& pq = connection.pq();
    while (!Stopped(milliseconds(0))) {
      pollfd readable{
          .fd = pq.PQsocket(connection.raw()), .events = POLLIN, .revents = 0};
      (void)::poll(&readable, 1, kTurnMs);
      if (pq.PQconsumeInput(connection.raw()) == 0 || connection.lost()) return;
      while (PGnotify* notice = pq.PQnotifies(connection.raw())) {
        if (std::string_view(notice->relname) == "reprise_leases") {
          events_.released();
        } else {
          events_.changed(notice->extra, notice->be_pid);
        }
        pq.PQfreemem(notice);
      }
    }
  }

  bool Stopped(std::chrono::milliseconds within) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, within, [this] { return stop_; });
  }

  const std::string url_;
  const Events events_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool stop_ = false;
  std::thread thread_;  // last: it uses all of the above
};

// Leases over all daemons of a PostgreSQL store. A lease is the lock on a row of
// `reprise_leases` in an open transaction (FOR UPDATE SKIP LOCKED), so the
// server takes it back when the daemon dies or its connection breaks.
class PostgresLeases {
 public:
  explicit PostgresLeases(std::string url)
      : pool_(new Pool{.url = std::move(url)}) {}

  // As Store::TryLease. A lease may outlive this.
  StatusOr<std::unique_ptr<Lease>> Try(const std::string& name) {
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
            ->Execute(
                "BEGIN; SET LOCAL idle_in_transaction_session_timeout = 0")
            .status());
    ASSIGN_OR_RETURN(const bool locked,
                     Ask(*connection,
                         "SELECT name FROM reprise_leases WHERE name = ?"
                         " FOR UPDATE SKIP LOCKED",
                         name));
    if (locked) {
      return std::unique_ptr<Lease>(
          new Held(pool_, std::move(connection), name));
    }
    RETURN_IF_ERROR(connection->Execute("ROLLBACK").status());
    const std::lock_guard lock(pool_->mutex);
    if (pool_->idle.size() < kMaxIdle) {
      pool_->idle.push_back(std::move(connection));
    }
    return std::unique_ptr<Lease>();
  }

 private:
  // Connections without a lease.
  struct Pool {
    const std::string url;
    std::mutex mutex = {};
    std::vector<std::unique_ptr<PostgresConnection>> idle = {};
  };

  class Held final : public Lease {
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

  const std::shared_ptr<Pool> pool_;
};

}  // namespace reprise::server
