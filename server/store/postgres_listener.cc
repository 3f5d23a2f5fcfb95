// SPDX-License-Identifier: Apache-2.0
#include "server/store/postgres_listener.h"

#include <poll.h>
#include <pthread.h>

#include <algorithm>
#include <chrono>

namespace reprise::server {

namespace {

using std::chrono::milliseconds;

constexpr milliseconds kFirstPause{100};
constexpr milliseconds kLongestPause{5000};
constexpr int kTurnMs = 200;

}  // namespace

PostgresListener::PostgresListener(std::string url, Events events)
    : url_(std::move(url)),
      events_(std::move(events)),
      thread_([this] { Run(); }) {}

PostgresListener::~PostgresListener() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

bool PostgresListener::Stopped(milliseconds within) {
  std::unique_lock lock(mutex_);
  return changed_.wait_for(lock, within, [this] { return stop_; });
}

void PostgresListener::Run() {
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
void PostgresListener::Await(PostgresConnection& connection) {
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

}  // namespace reprise::server
