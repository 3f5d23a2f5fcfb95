// SPDX-License-Identifier: Apache-2.0
//
// One port for both gRPC and HTTP.
//
//   accept() ─▶ first four bytes ── "PRI " ─▶ gRPC (the HTTP/2 preface)
//                                ── else   ─▶ HTTP/1.1
//
// The bytes are peeked at, not consumed. A client that sends nothing waits in
// the poll set without a thread, delays nobody, and is dropped after ten
// seconds; if 512 clients wait, the oldest makes room for the next. In split
// mode a listener serves one protocol and peeks at nothing.
//
// Whoever connects takes a descriptor, with or without the token. Half of them
// are for anybody, a quarter more for the daemon's own user and root, and the
// last quarter is never given to a client: agents, files and the store need it.
#pragma once

#include <atomic>
#include <chrono>
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
  // ALREADY_EXISTS: the port is in use; the message says what to do.
  static StatusOr<std::unique_ptr<Listener>> Bind(const Address& address,
                                                  Serves serves);
  ~Listener();
  Listener(const Listener&) = delete;
  Listener& operator=(const Listener&) = delete;

  // The address, with the port that was chosen.
  const Address& address() const { return address_; }

  // Starts accepting. Both functions are called on the accept thread.
  void Start(AdoptSocket to_grpc, AdoptSocket to_http);

  // Stops accepting; no connection is passed on after this returns.
  void Stop();

 private:
  Listener(Address address, Serves serves, int listen_fd, int wake_fd)
      : address_(std::move(address)),
        serves_(serves),
        listen_fd_(listen_fd),
        wake_fd_(wake_fd) {}

  void Loop();
  // Returns whether a client that was given this descriptor may stay.
  bool HasRoom(int fd);
  // Passes the socket to gRPC or HTTP. Returns false if the protocol is not
  // known yet; with `last_chance` the socket is then closed.
  bool HandOn(int fd, bool last_chance) const;

  const Address address_;
  const Serves serves_;
  const int listen_fd_;
  const int wake_fd_;
  AdoptSocket to_grpc_;
  AdoptSocket to_http_;
  std::chrono::steady_clock::time_point warned_{};  // that there is no room
  std::atomic<bool> stopping_{false};
  std::thread thread_;
};

}  // namespace reprise::server
