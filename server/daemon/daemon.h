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
#include "server/core/log.h"
#include "server/forward/central_channel.h"
#include "server/net/tls_front.h"

namespace reprise::server {

// The flags of reprised and `reprise serve`.
struct DaemonOptions {
  std::string listen = "127.0.0.1:7070";
  // If either is set, each protocol has its own port, and `listen` is unused.
  std::string grpc_listen;
  std::string http_listen;
  std::string data_dir;
  // "postgresql://...": where runs are stored. Empty: DATA_DIR/reprise.db.
  std::string store_url;
  std::string agent_socket;
  // File with the token that callers over TCP need. Empty: DATA_DIR/token,
  // which is created if missing.
  std::string token_file;
  // Without a certificate the daemon may only listen on loopback.
  TlsOptions tls;
  // Where all that is stored here is sent, too.
  ForwardOptions forward;
  // Exits `linger_seconds` after the last agent has left and the last request
  // was made, so that the page of a finished run can still be read.
  bool private_daemon = false;
  int64_t linger_seconds = 3600;
  // A private daemon does not exit while this process is its parent: whoever
  // started it still has questions when the job is gone. 0: none.
  int64_t with_parent = 0;
  LogLevel log_level = LogLevel::kInfo;
  LogFormat log_format = LogFormat::kText;
  // Largest database file, in pages of 4 KiB; 0: no limit.
  int64_t max_store_pages = 0;
  // Retention: deletes runs that ended longer ago than keep_seconds, and the
  // oldest ones while the store is larger than keep_bytes. 0: no limit.
  int64_t keep_seconds = 0;
  int64_t keep_bytes = 0;
  // Quota: what is stored of one run at most, in bytes; 0: no limit.
  int64_t max_run_bytes = 0;
  // Step graphs that are being sent to it, all together. No flag sets it.
  uint64_t max_sent_graph_bytes = uint64_t{256} << 20;
};

struct ParsedOptions {
  DaemonOptions options;
  // Set if the process should exit: --help, --version, wrong usage.
  bool exit = false;
  int exit_code = 0;
};

// Parses the flags; prints help and usage errors itself.
ParsedOptions ParseDaemonOptions(int argc, char** argv);

class Daemon {
 public:
  // Starts a daemon. Fails with one sentence: a folder is not writable, a
  // second daemon is running, a port is in use, an address beyond loopback has
  // no TLS and token, or the database is damaged.
  static StatusOr<std::unique_ptr<Daemon>> Start(const DaemonOptions& options);

  Daemon() = default;
  // Like Stop, but waits for nothing.
  virtual ~Daemon() = default;
  Daemon(const Daemon&) = delete;
  Daemon& operator=(const Daemon&) = delete;

  // "127.0.0.1:7070": where each protocol listens; empty if it does not.
  virtual std::string http_address() const = 0;
  virtual std::string grpc_address() const = 0;

  // Does the periodic work; call it about once a second. Returns whether a
  // private daemon has nothing left to do.
  virtual bool Tick() = 0;

  // For a private daemon that is asked to make way for another: returns true if
  // it has no job. From then on no job can come any more.
  virtual bool MayYield() = 0;

  // Shuts down cleanly within about `patience`.
  virtual void Stop(std::chrono::milliseconds patience) = 0;

  // Only removes server.json: for a second signal, just before _exit.
  virtual void Abandon() = 0;
};

// The main function of reprised and `reprise serve`: parses the flags and runs
// until SIGTERM or SIGINT or, as a private daemon, until the last job is gone.
// Returns the exit code: 0; 1 if it cannot start; 2 for wrong usage. A second
// signal ends the process at once.
int RunServer(int argc, char** argv);

}  // namespace reprise::server
