// SPDX-License-Identifier: Apache-2.0
//
// The daemon: everything but the flags and the signals.
//
//        agents ─▶ Collector ─(in-process gRPC)─▶ Ingest ─▶ Committer ─▶ Store
//                                                             │ steps
//   gRPC clients ─┐                                           ▼
//                 ├▶ Listener ─▶ Planner, Query ─▶ pools ─▶ Planning ─▶ Store
//   browsers ─────┘                                           │ re-plans
//                              agents ◀─ Collector ◀─ Ingest ◀┘
//
// Start takes the locks, opens the store, starts the components in dependency
// order and writes the addresses to server.json, next to the agent socket. Stop
// reverses this:
//   health NOT_SERVING; the collector drains its rings and forwards; Drain on
//   the other Ingest streams; plans in progress end; gRPC and HTTP close; the
//   committer commits; the write-ahead log is emptied; server.json is removed.
// A process that is killed instead loses nothing that was acknowledged.
#pragma once

#include <chrono>
#include <memory>
#include <string>

#include "base/status.h"
#include "server/daemon/daemon_options.h"

namespace reprise::server {

class Daemon {
 public:
  // Starts a daemon. Fails with one sentence: a folder is not writable, a
  // second daemon is running, a port is in use, an address beyond loopback has
  // no TLS and token, or the database is damaged.
  static StatusOr<std::unique_ptr<Daemon>> Start(const DaemonOptions& options);

  // Like Stop, but waits for nothing.
  ~Daemon();

  // "127.0.0.1:7070": where each protocol listens; empty if it does not.
  std::string http_address() const;
  std::string grpc_address() const;

  // Does the periodic work; call it about once a second. Returns whether a
  // private daemon has nothing left to do.
  bool Tick();

  // For a private daemon that is asked to make way for another: returns true if
  // it has no job. From then on no job can come any more.
  bool MayYield();

  // Shuts down cleanly within about `patience`.
  void Stop(std::chrono::milliseconds patience);

  // Only removes server.json: for a second signal, just before _exit.
  void Abandon();

 private:
  class Impl;
  explicit Daemon(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// The main function of reprised and `reprise serve`: parses the flags and runs
// until SIGTERM or SIGINT or, as a private daemon, until the last job is gone.
// Returns the exit code: 0; 1 if it cannot start; 2 for wrong usage. A second
// signal ends the process at once.
int RunServer(int argc, char** argv);

}  // namespace reprise::server
