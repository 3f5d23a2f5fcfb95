// SPDX-License-Identifier: Apache-2.0
//
// The daemon: everything between the flags and the signals.
//
//        agents ─▶ Collector ─(in-process gRPC)─▶ Ingest ─▶ Committer ─▶ Store
//                                                             │ steps
//   gRPC clients ─┐                                           ▼
//                 ├▶ Listener ─▶ Planner, Query ─▶ pools ─▶ Planning ─▶ Store
//   browsers ─────┘                                           │ re-plans
//                              agents ◀─ Collector ◀─ Ingest ◀┘
//
// Start takes the locks, opens the store, starts the parts from the inside out
// and says where it listens in server.json, beside the agent socket. Stop is
// the way back:
//   health NOT_SERVING; the collector drains its rings and forwards; Drain on
//   the other Ingest streams; plans in progress end; gRPC and HTTP close; the
//   committer commits; the write-ahead log is emptied; server.json goes.
// A process that is killed instead loses nothing that was acknowledged.
#pragma once

#include <chrono>
#include <memory>
#include <string>

#include "base/status.h"
#include "server/daemon_options.h"

namespace reprise::server {

class Daemon {
 public:
  // One sentence on failure: a folder that is not writable, a second daemon,
  // a port in use, an address beyond loopback without TLS and a token, a
  // damaged database.
  static StatusOr<std::unique_ptr<Daemon>> Start(const DaemonOptions& options);

  // As Stop, without waiting for anything.
  ~Daemon();

  // "127.0.0.1:7070"; where each protocol listens, empty where it does not.
  std::string http_address() const;
  std::string grpc_address() const;

  // For a private daemon: whether it has nothing left to do. Also looks after
  // what needs looking after every few seconds; call it about once a second.
  bool Tick();

  // A private daemon without a job: another one may take its place at once.
  // Where it returns true no job can come any more.
  bool MayYield();

  // Clean shutdown within about `patience`.
  void Stop(std::chrono::milliseconds patience);

  // Only removes server.json: for a second signal, before _exit.
  void Abandon();

 private:
  class Impl;
  explicit Daemon(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// reprised and `reprise serve`: parses the flags, runs until SIGTERM or SIGINT
// or, as a private daemon, until the last job is gone. Returns the exit code:
// 0; 1 when it cannot start; 2 for wrong usage. A second signal ends the
// process at once.
int RunServer(int argc, char** argv);

}  // namespace reprise::server
