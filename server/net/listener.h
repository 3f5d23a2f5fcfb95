// SPDX-License-Identifier: Apache-2.0
//
// One port for gRPC and HTTP.
//
//   accept() ─▶ first four bytes ── "PRI " ─▶ gRPC (the HTTP/2 preface)
//                                ── else   ─▶ HTTP/1.1
//
// The bytes are looked at, not taken. A client that sends nothing waits in the
// poll set, costs no thread, holds nobody up, and is dropped after ten seconds;
// where 512 wait, the oldest makes way for the next. In split mode a listener
// serves one kind and looks at nothing.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <thread>

#include "base/status.h"
#include "server/net/address.h"

namespace reprise::server {

enum class Serves { kBoth, kGrpc, kHttp };

// Takes over a connected, non-blocking socket.
using AdoptSocket = std::function<void(int fd)>;

class Listener {
 public:
  // Binds and listens; connections wait in the backlog until Start.
  // ALREADY_EXISTS: the port is taken; names what to do.
  static StatusOr<std::unique_ptr<Listener>> Bind(const Address& address,
                                                  Serves serves);
  ~Listener();
  Listener(const Listener&) = delete;
  Listener& operator=(const Listener&) = delete;

  // With the port that was chosen.
  const Address& address() const { return address_; }

  // Both are called on the accept thread.
  void Start(AdoptSocket to_grpc, AdoptSocket to_http);

  // No connection is handed on after this returns.
  void Stop();

 private:
  Listener(Address address, Serves serves, int listen_fd, int wake_fd)
      : address_(std::move(address)),
        serves_(serves),
        listen_fd_(listen_fd),
        wake_fd_(wake_fd) {}

  void Loop();
  // Gives the socket to whom it is for; false: not known yet. With the last
  // chance it is closed then.
  bool HandOn(int fd, bool last_chance) const;

  const Address address_;
  const Serves serves_;
  const int listen_fd_;
  const int wake_fd_;
  AdoptSocket to_grpc_;
  AdoptSocket to_http_;
  std::atomic<bool> stopping_{false};
  std::thread thread_;
};

}  // namespace reprise::server
