// SPDX-License-Identifier: Apache-2.0
//
// The collector's thread for agents: accepts them, empties their sockets and
// rings, and writes the spool. It is the only writer of the spool and never
// waits for the server.
//
// One turn: run what other threads posted; accept connections; for each session
// note the ring's head, empty the socket, and read the ring up to that head (so
// the DEFS of a record always precede it); commit in transactions of at most 16
// chunks; free the slots; pass on what is new. The next turn comes at once
// while a ring holds more, after 10 ms while records flow, else after 100 ms.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "server/collect/agent_session.h"
#include "server/collect/collector.h"
#include "server/collect/forwarder.h"
#include "server/collect/plan_relay.h"
#include "server/collect/spool.h"

namespace reprise::server {

// Chunks per transaction of the spool.
inline constexpr size_t kChunksPerTransaction = 16;

// The current Unix time, used to number epochs so that none repeats.
uint64_t UnixMilliseconds();

class DrainLoop {
 public:
  DrainLoop(CollectorOptions options, Fd listener, Spool spool);
  ~DrainLoop();

  // Reads the spool, hands its sessions to the forwarder, and starts the
  // thread. `forwarder` and `relay` must live until Stop returns.
  Status Start(Forwarder& forwarder, PlanRelay& relay);

  // Ends the thread after its current turn. Tasks posted later do not run.
  void Stop();

  // -- From any thread --

  void Acked(int64_t key, uint64_t seq);
  void Finished(int64_t key);
  void EpochTaken(int64_t key);
  void Answered(PlanAnswer answer);
  void OpenWindow(int64_t key, const v1::OpenWindow& window);

  // Closes the listener, so that no agent can come any more, and returns true.
  // Does nothing and returns false if there is a session, or a connection that
  // has not sent HELLO yet.
  bool Retire();
  // Closes the listener and asks agents to flush. From then on, everything is
  // stored without waiting for more.
  void BeginDrain();
  // Returns whether a turn since BeginDrain found nothing left to store.
  bool drained() const { return drained_; }

  std::vector<AgentSnapshot> Agents() const;
  int ConnectedAgents() const { return connected_; }
  int64_t spool_bytes() const { return spool_bytes_; }
  CollectorStats stats() const;
  std::string trouble() const;

 private:
  using Clock = std::chrono::steady_clock;

  // A connection that was accepted but has not sent HELLO yet.
  struct Newcomer {
    Fd socket;
    Peer peer;
    Clock::time_point since;
  };

  void Run();
  void Post(std::function<void()> task);
  // The same for a session, if it is still there.
  void PostTo(int64_t key, std::function<void(AgentSession&)> task);
  void RunPosted();
  int WaitMilliseconds() const;

  // drain_loop_agents.cc: connections and sessions
  void Accept();
  void ReadNewcomers();
  Status Welcome(Newcomer& newcomer, Message& hello);
  AgentSession* FindSession(const std::string& session_id);
  void ReadSockets();
  void ReadSocket(AgentSession& session);
  void CloseSocket(AgentSession& session);
  void FlushSockets();
  void CheckProcesses();
  void Watch(const Fd& socket);
  void WatchListener();
  void Refuse(const Fd& socket, const std::string& why);

  // drain_loop_store.cc: storing
  void StoreAll();
  bool StoreSome();
  Status Commit(const std::vector<AgentSession*>& due);
  Status Trim();
  void ApplyDeletes();
  void PassOn(AgentSession& session, const AgentSession::Stored& stored);

  void Publish();
  void SetTrouble(const Status& status);

  const CollectorOptions options_;
  const std::string boot_id_;
  Fd listener_;
  Fd epoll_;
  Fd wake_;
  Spool spool_;
  Forwarder* forwarder_ = nullptr;
  PlanRelay* relay_ = nullptr;

  std::vector<Newcomer> newcomers_;
  bool listening_ = true;  // epoll_ reports new connections
  std::map<int64_t, std::unique_ptr<AgentSession>> sessions_;
  int64_t last_key_ = 0;
  int64_t last_served_ = 0;     // whose ring was read last
  bool more_to_store_ = false;  // start the next turn at once
  std::vector<reprise_slot> scratch_;

  std::map<int64_t, uint64_t> to_delete_;  // acknowledged, key to seq
  std::vector<int64_t> to_forget_;         // finished sessions
  uint64_t unapplied_acks_ = 0;
  Clock::time_point deletes_since_{};
  Clock::time_point active_at_{};
  Clock::time_point checked_at_{};
  Clock::time_point published_at_{};
  Clock::time_point retry_at_{};  // after a failed transaction
  bool short_of_room_ = false;    // until a transaction succeeds again
  bool draining_ = false;
  bool socket_backlog_ = false;

  mutable std::mutex mutex_;
  std::vector<std::function<void()>> posted_;
  std::vector<AgentSnapshot> snapshot_;
  std::string trouble_;
  bool stop_ = false;

  std::atomic<bool> drained_{false};
  std::atomic<int> connected_{0};
  std::atomic<int64_t> spool_bytes_{0};
  std::atomic<uint64_t> records_{0};
  std::atomic<uint64_t> chunks_{0};
  std::atomic<uint64_t> refused_{0};
  std::thread thread_;
};

}  // namespace reprise::server
