// SPDX-License-Identifier: Apache-2.0
//
// The collector's one thread for agents: accepts them, empties their sockets
// and rings, writes the spool. It is the only writer of the spool and never
// waits for the server.
//
// A turn: run what other threads posted; accept; per session note the ring's
// head, empty the socket, and read the ring up to that head (so the DEFS of a
// record are always known before it); commit in transactions of at most 16
// chunks; free the slots; pass on what is new. Turns come at once while a ring
// holds more, every 10 ms while records flow, else every 100 ms.
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

// A transaction of the spool.
inline constexpr size_t kChunksPerTransaction = 16;

// For epochs that were never used before.
uint64_t UnixMilliseconds();

class DrainLoop {
 public:
  DrainLoop(CollectorOptions options, Fd listener, Spool spool);
  ~DrainLoop();

  // Reads the spool and hands its sessions to the forwarder; then starts the
  // thread. Both must outlive Stop.
  Status Start(Forwarder& forwarder, PlanRelay& relay);

  // Ends the thread after its turn. What is posted later is not run.
  void Stop();

  // -- From any thread --

  void Acked(int64_t key, uint64_t seq);
  void Finished(int64_t key);
  void EpochTaken(int64_t key);
  void Answered(PlanAnswer answer);
  void OpenWindow(int64_t key, const v1::OpenWindow& window);

  // Closes the listener unless there is an agent, also one that has only
  // connected. Returns whether it did: from then on no agent can come.
  bool Retire();
  // Closes the listener, asks agents to flush, and from then on waits for
  // nothing before it stores.
  void BeginDrain();
  // Since BeginDrain a turn found nothing left to store.
  bool drained() const { return drained_; }

  std::vector<AgentSnapshot> Agents() const;
  int ConnectedAgents() const { return connected_; }
  bool EverHadAgent() const { return ever_had_agent_; }
  int64_t spool_bytes() const { return spool_bytes_; }
  CollectorStats stats() const;
  std::string trouble() const;

 private:
  using Clock = std::chrono::steady_clock;

  // Accepted, but HELLO has not come yet.
  struct Newcomer {
    Fd socket;
    Peer peer;
    Clock::time_point since;
  };

  void Run();
  void Post(std::function<void()> task);
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
  void Log(const std::string& line) const;

  const CollectorOptions options_;
  const std::string boot_id_;
  Fd listener_;
  Fd epoll_;
  Fd wake_;
  Spool spool_;
  Forwarder* forwarder_ = nullptr;
  PlanRelay* relay_ = nullptr;

  std::vector<Newcomer> newcomers_;
  std::map<int64_t, std::unique_ptr<AgentSession>> sessions_;
  int64_t last_key_ = 0;
  int64_t last_served_ = 0;     // whose ring was read last
  bool more_to_store_ = false;  // the next turn comes at once
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
  std::atomic<bool> ever_had_agent_{false};
  std::atomic<int64_t> spool_bytes_{0};
  std::atomic<uint64_t> records_{0};
  std::atomic<uint64_t> chunks_{0};
  std::atomic<uint64_t> refused_{0};
  std::thread thread_;
};

}  // namespace reprise::server
