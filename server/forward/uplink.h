// SPDX-License-Identifier: Apache-2.0
//
// Sends what a machine's daemon stores to a central daemon, too.
//
//   agents ─▶ collector ─▶ Ingest ─▶ store ─▶ pages, plans      (as without it)
//                                      │
//                          uplink ─────┴─▶ Ingest, PutGraph, PutPlan ─▶ centre
//
// Nothing waits for the centre: records are stored and plans are made here, and
// are sent when it answers. The store is what is still to be sent; the outbox
// remembers which ends were acknowledged. A chunk is known by its session, epoch
// and seq, a graph and a plan by their ids, so that what is sent twice is stored
// once, whichever of the two daemons was killed when. Plans go before the
// records that name them.
//
// At most kMostSessions sessions that have ended are sent at once, besides those
// under way, each with as many chunks as the centre allows; the rest waits on
// disk, where --keep-runs-for and --keep-bytes bound it. While the centre does
// not answer, it is asked again after 0.1 to 5 s.
#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "reprise/v1/query.pb.h"
#include "server/collect/forwarder.h"
#include "server/forward/outbox.h"
#include "server/forward/run_sender.h"
#include "server/store/run_hub.h"
#include "server/store/store.h"

namespace reprise::server {

// Passes on what somebody asked the centre for: a window, or a plan within
// another budget. Called on the forwarder's thread.
using Relay =
    std::function<void(const std::string& run_id, const std::string& session_id,
                       const v1::Down& down)>;

class Uplink {
 public:
  static constexpr size_t kMostSessions = 64;

  // `store` and `hub` must outlive it. `channel` leads to the centre; `started_ns`
  // is when this daemon started, as its status says it.
  Uplink(Store& store, RunHub& hub, ForwardOptions options,
         const std::shared_ptr<grpc::Channel>& channel, int64_t started_ns,
         Outbox outbox, Relay relay);
  ~Uplink();

  // Waits until the centre has everything, or for so long, or until it is away.
  void Drain(std::chrono::milliseconds within);

  // Ends the threads and the streams; what was not acknowledged is sent after
  // the next start.
  void Stop();

  // Fills in how far behind the centre is.
  void FillStatus(v1::ForwardStatus& status) const;

 private:
  // A session that the forwarder knows, or is about to.
  struct Session {
    int64_t key = 0;
    std::string run_id;
    // As the forwarder was told; it is told again when this changes.
    uint64_t epoch = 0;
    uint64_t committed = 0;
    uint64_t names = 0;
    std::string caps;
    bool bye = false;
    bool more_epochs = false;
    uint64_t total = 0;      // chunks, over all epochs
    uint64_t of_before = 0;  // of epochs that were acknowledged
    uint64_t until_bye = 0;  // `total` when the end was told
    bool finished = false;   // its end was acknowledged
    bool ahead = false;      // the centre has more of it
    // The version of its run (RunHub) when it was last read.
    std::optional<uint64_t> version;
  };

  void Loop();
  bool stopping() const;
  bool LookedAt(uint64_t total) const;
  // Looks through the store and sends what is new. UNAVAILABLE: the centre is
  // away.
  Status Look();
  // Adds the sessions that are to be sent, and returns them; the others wait.
  std::vector<ListedSession> Choose(const std::vector<ListedSession>& listed);
  Status Follow(const ListedSession& listed);
  Status SendRun(const std::string& run_id, const RunFacts& facts);
  // Tells the forwarder what is new of a session. Requires mutex_.
  void Tell(const std::string& session_id, Session& session,
            const std::vector<StoredSession>& epochs);
  Status SettleFinished();
  Status DropRemoved(const std::vector<ListedSession>& listed);
  void Say(const std::string& trouble);
  void Pause(std::chrono::milliseconds time);

  // Called on the forwarder's thread.
  void Finished(int64_t key);
  void EpochTaken(int64_t key);
  void Asked(int64_t key, const v1::Down& down);

  Store& store_;
  RunHub& hub_;
  const ForwardOptions options_;
  const Relay relay_;
  Outbox outbox_;   // of the thread
  RunSender runs_;  // of the thread
  // Of the thread, too. Sessions whose end was acknowledged, with their chunks
  // before it; runs with the version that was sent; runs that the centre had no
  // room for, and when they are tried again.
  std::map<std::string, uint64_t> ended_;
  std::map<std::string, uint64_t> sent_runs_;
  std::map<std::string, std::chrono::steady_clock::time_point> full_;
  std::string no_room_;
  bool greeted_ = false;
  int64_t last_key_ = 0;
  StoredChunks* chunks_ = nullptr;  // of the forwarder
  std::unique_ptr<Forwarder> forwarder_;

  mutable std::mutex mutex_;
  std::condition_variable stopped_;
  std::map<std::string, Session> sessions_;
  uint64_t waiting_chunks_ = 0;  // of sessions that are not in sessions_
  uint64_t waiting_sessions_ = 0;
  uint64_t waiting_runs_ = 0;
  int64_t behind_since_ns_ = 0;
  std::string trouble_;
  uint64_t looked_at_ = 0;  // the hub's total when the last look began
  bool looked_ = false;
  bool stop_ = false;

  std::thread thread_;  // last: it uses all of the above
};

}  // namespace reprise::server
