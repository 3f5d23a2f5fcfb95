// SPDX-License-Identifier: Apache-2.0
//
// The collector role of reprised: from the agents of this machine to a server.
//
//   agents ──ring, control socket──▶ drain loop ──chunks──▶ spool (SQLite)
//                                        ▲                     │
//                                  plans │                     ▼
//   server ◀──────────── Planner ── plan relay   forwarder ── Ingest ──▶ server
//
// Guarantees
//   - A record is released from an agent's ring only after the spool
//     transaction that contains it is committed, and a chunk leaves the spool
//     only after the server acknowledged it. So a kill of the daemon at any
//     moment neither loses nor doubles a record, and a kill of the job keeps
//     everything it had pushed.
//   - What cannot be kept is counted and dated: ring overflow in
//     Chunk.dropped_before and Bye.dropped, half-written slots in Bye.torn, a
//     trimmed spool as Lost.
//   - Nothing that an agent sends is trusted: a hostile agent damages only its
//     own session.
//   - The server is reached only through `channel` (an in-process channel if
//     both roles share a process); it may be absent, slow or restarted.
//
// The caller must hold the daemon's lock on the runtime folder: a stale socket
// file is removed at start.
//
//   CollectorOptions options{.agent_socket = ..., .spool_path = ...};
//   options.channel = server->InProcessChannel({});
//   ASSIGN_OR_RETURN(auto collector, Collector::Start(std::move(options)));
//   ...
//   // Before the server stops:
//   (void)collector->Drain(std::chrono::seconds(5));
//   collector.reset();
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/status.h"

namespace grpc {
class Channel;
}

namespace reprise::server {

struct CollectorOptions {
  // Unix SOCK_SEQPACKET socket that agents connect to, mode 0600. Its folder is
  // created with mode 0700 if it does not exist.
  std::string agent_socket;

  // SQLite file with the chunks that the server has not acknowledged.
  std::string spool_path;

  // To a server with `Ingest` and `Planner`.
  std::shared_ptr<grpc::Channel> channel;

  // The daemon's version, sent to agents.
  std::string version;

  // Beyond this size the oldest chunks are deleted and reported as Lost.
  int64_t spool_max_bytes = int64_t{1} << 30;
};

// One agent session, as status pages show it.
struct AgentSnapshot {
  std::string session_id;
  std::string run_id;
  uint32_t pid = 0;
  uint32_t rank = 0;
  bool connected = false;
  uint64_t records = 0;  // taken from the ring
  uint64_t dropped = 0;  // never entered the ring: it was full
  uint64_t torn = 0;     // reserved but not published, or malformed
  // One line each: what works in the job and, if something does not, why.
  std::vector<std::string> capabilities;
};

// Counters since start, for metrics and benchmarks.
struct CollectorStats {
  uint64_t records = 0;
  uint64_t chunks_spooled = 0;
  uint64_t chunks_acked = 0;
  uint64_t chunks_resent = 0;
  uint64_t chunks_lost = 0;
  uint64_t refused = 0;  // connections turned away or cut off
};

class Collector {
 public:
  // Opens the spool, listens, and starts its threads. Chunks left in the spool
  // by an earlier process are forwarded at once.
  //   INVALID_ARGUMENT     a path is empty or too long for a socket;
  //   PERMISSION_DENIED    a folder is not ours or not writable;
  //   FAILED_PRECONDITION  something answers on the socket already, or the
  //                        spool was written by a newer version;
  //   RESOURCE_EXHAUSTED, DATA_LOSS  the spool cannot be opened.
  static StatusOr<std::unique_ptr<Collector>> Start(CollectorOptions options);

  // Stops at once. What is committed stays in the spool for the next start.
  virtual ~Collector() = default;
  Collector() = default;
  Collector(const Collector&) = delete;
  Collector& operator=(const Collector&) = delete;

  // Sessions that are connected, or whose end is not yet known to the server.
  virtual std::vector<AgentSnapshot> Agents() const = 0;

  // Agents connected now.
  virtual int ConnectedAgents() const = 0;

  virtual int64_t spool_bytes() const = 0;
  virtual CollectorStats stats() const = 0;

  // Empty if all is well, else one sentence ("spool: disk full: ...").
  virtual std::string degraded() const = 0;

  // For a daemon that is about to exit. Unless there is an agent session or a
  // connection, stops accepting agents and returns true. An agent that comes
  // later finds no daemon and starts another.
  virtual bool Retire() = 0;

  // Stops accepting agents, tells the connected ones to flush, empties the
  // rings, commits, and forwards until everything is acknowledged. Connected
  // sessions are not ended: they continue with the next daemon.
  //   DEADLINE_EXCEEDED  something is still in a ring or in the spool.
  virtual Status Drain(std::chrono::milliseconds deadline) = 0;
};

}  // namespace reprise::server
