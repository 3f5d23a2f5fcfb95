// SPDX-License-Identifier: Apache-2.0
//
// Sends chunks from a source to a server: one Ingest stream per session,
// open while the session lives, reopened with growing pauses when it breaks.
//
//   closed ──open, Hello──▶ greeting ──Welcome──▶ sending ──Bye, half close──▶
//     ▲                                              │        OK: finished
//     └───────────── 0.1 to 5 s ◀── any other end ───┘
//
// Each stream sends, in this order of preference: names that the server has not
// received on this stream; the next chunk, while fewer than max_inflight are
// unacknowledged; and Bye, once all chunks are acknowledged and the session has
// ended. A seq that the source no longer has is reported as Lost. A chunk that
// the server rejects three times as invalid is dropped, so that it cannot block
// the rest forever.
//
// Has a thread of its own; the public functions are thread-safe.
#pragma once

#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <string>
#include <thread>

#include "reprise/v1/ingest.grpc.pb.h"
#include "server/collect/chunk_source.h"
#include "server/collect/ingest_stream.h"

namespace reprise::server {

// Called on the forwarder's thread, with no lock held.
struct ForwarderEvents {
  // Everything up to `seq` may be deleted.
  std::function<void(int64_t key, uint64_t seq)> acked;
  // The server has taken the end of the session.
  std::function<void(int64_t key)> finished;
  // The server has chunks of this epoch that we did not send: start another
  // epoch.
  std::function<void(int64_t key)> epoch_taken;
  // A new plan for a graph of the session, or a few steps to be recorded.
  std::function<void(int64_t key, const v1::Down& down)> asked;
};

class Forwarder {
 public:
  // `server` names it in sentences: "server", "central.example.org:7070".
  Forwarder(std::shared_ptr<grpc::Channel> channel,
            std::unique_ptr<ChunkSource> source, std::string server,
            ForwarderEvents events);
  ~Forwarder();

  // Cancels the streams, waits until they have ended, and ends the thread. No
  // event follows.
  void Stop();

  // Adds a session, or gives one a new epoch. The other arguments are as for
  // Committed.
  void SetSession(int64_t key, v1::Hello hello, uint64_t last_seq,
                  uint64_t last_name);
  // Chunks up to `last_seq` and names up to `last_name` are in the source.
  void Committed(int64_t key, uint64_t last_seq, uint64_t last_name);
  void Ended(int64_t key, v1::Bye bye);
  // Sets the session's capabilities (all of them), which are sent on every
  // stream.
  void SetCaps(int64_t key, v1::Caps caps);

  // Returns the seq up to which a session's chunks need no sending: they are
  // acknowledged or lost. 0 for one that is not known.
  uint64_t AckedOf(int64_t key) const;

  // Returns whether the server has acknowledged every chunk and every session's
  // end.
  bool AllTaken() const;

  // Empty, or one sentence on why chunks are not getting through.
  std::string trouble() const;

  struct Counts {
    uint64_t acked = 0, resent = 0, lost = 0;
  };
  Counts counts() const;

 private:
  using Clock = std::chrono::steady_clock;

  static constexpr int kMaxRefusals = 3;

  // Set and read by other threads, under mutex_.
  struct Entry {
    std::shared_ptr<const v1::Hello> hello;
    uint64_t last_seq = 0;
    uint64_t last_name = 0;
    // Chunks up to here need no sending: they are acknowledged or lost.
    uint64_t acked = 0;
    uint64_t acked_by_server = 0;
    std::optional<v1::Bye> bye;
    std::shared_ptr<const v1::Caps> caps;
  };

  // Used only by the forwarder's thread.
  struct Link {
    std::shared_ptr<IngestStream> stream;
    uint64_t epoch = 0;
    bool welcomed = false;
    bool bye_sent = false;
    uint64_t send_next = 1;
    uint64_t names_sent = 0;
    std::shared_ptr<const v1::Caps> caps_sent;
    uint64_t max_inflight = 0;
    uint64_t max_chunk_bytes = 0;
    uint64_t highest_sent = 0;
    Clock::time_point opened_at;
    Clock::time_point retry_at;
    int failures = 0;  // since the last progress
    int refusals = 0;  // with INVALID_ARGUMENT, since then
    std::string refusal;
  };

  void Run();
  bool stopping() const;
  // Changes a session's entry, which may be a new one, and wakes the thread.
  template <typename Changed>
  void Change(int64_t key, Changed changed);
  // Advances one session. Returns true if it is finished and can be forgotten.
  bool Step(int64_t key, Link& link);
  void Open(Link& link, const v1::Hello& hello);
  void Answer(int64_t key, Link& link, const v1::Down& down);
  void OnWelcome(int64_t key, Link& link, const v1::Welcome& welcome);
  void OnAck(int64_t key, Link& link, uint64_t committed);
  bool OnOver(Link& link, const grpc::Status& status);
  std::optional<v1::Up> NextMessage(int64_t key, Link& link,
                                    const Entry& entry);
  v1::Up LostMessage(int64_t key, Link& link, uint64_t to, std::string reason);
  void SetTrouble(std::string text);
  void WakeAt(Clock::time_point time) { wake_at_ = std::min(wake_at_, time); }

  const std::unique_ptr<v1::Ingest::Stub> stub_;
  const std::unique_ptr<ChunkSource> source_;
  const std::string server_;
  const ForwarderEvents events_;
  const std::shared_ptr<Signal> signal_ = std::make_shared<Signal>();

  mutable std::mutex mutex_;
  std::map<int64_t, Entry> entries_;
  std::string trouble_;
  Counts counts_;
  bool stop_ = false;

  std::map<int64_t, Link> links_;
  Clock::time_point wake_at_;
  std::minstd_rand jitter_{std::random_device{}()};
  std::thread thread_;  // last: it uses all of the above
};

}  // namespace reprise::server
