// SPDX-License-Identifier: Apache-2.0
//
// Hears what other daemons committed (NOTIFY), on a connection and a thread of
// its own; connects again with growing pauses when it breaks.
#pragma once

#include <condition_variable>
#include <functional>
#include <mutex>
#include <string>
#include <thread>

#include "server/store/postgres.h"

namespace reprise::server {

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

  PostgresListener(std::string url, Events events);
  ~PostgresListener();

 private:
  void Run();
  void Await(PostgresConnection& connection);
  bool Stopped(std::chrono::milliseconds within);

  const std::string url_;
  const Events events_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool stop_ = false;
  std::thread thread_;  // last: it uses all of the above
};

}  // namespace reprise::server
