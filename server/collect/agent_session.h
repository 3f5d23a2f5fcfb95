// SPDX-License-Identifier: Apache-2.0
//
// One agent session inside the drain loop: its row in the spool, and, while
// its process lives, its ring and its control socket.
//
//   connected ◀──HELLO── disconnected ──process gone──▶ ending ──▶ ended
//       │  └──────EOF──────▶ │                             ▲
//       └──────BYE───────────┼─────────────────────────────┘
//
// Storing takes three steps, so that the ring is never freed before its records
// are on disk: Prepare copies from the ring and builds chunks, Store writes
// them inside the caller's transaction, and Committed frees the slots. If the
// transaction fails, the next Prepare starts over.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "profiler/include/reprise_wire.h"
#include "reprise/v1/ingest.pb.h"
#include "server/collect/chunk_builder.h"
#include "server/collect/collector.h"
#include "server/collect/control_socket.h"
#include "server/collect/op_join.h"
#include "server/collect/plan_relay.h"
#include "server/collect/ring_reader.h"
#include "server/collect/spool.h"

namespace reprise::server {

// Checks the first message of an agent, before anything in it is used.
struct AgentHello {
  std::string session_id;
  std::string run_id;
  uint32_t slots = 0;
  // Add this to a CLOCK_REALTIME time to get CLOCK_MONOTONIC.
  int64_t realtime_to_monotonic_ns = 0;
  // As stated by the agent, except for the uid, which the kernel reports.
  v1::SessionInfo info;
};

// Returns the checked content. INVALID_ARGUMENT, with one sentence for REFUSED.
StatusOr<AgentHello> ParseHello(const Message& message, const Peer& peer);

// Parses the lines of an agent's CAPS message, "name=value reason", into
// capabilities. The level of CUPTI is a number there and becomes words.
v1::Caps CapabilitiesOf(const std::vector<std::string>& lines);

// Moments: what a job was doing, and what it held in memory, when it was killed
// or ran out of memory. That of a killed job is made from the words it left in
// its ring; that of an out-of-memory exception comes from the job as JSON. Both
// are untrusted until they are checked here.

inline constexpr size_t kMaxMomentBytes = 1 << 20;
inline constexpr int kMaxHeldStorages = 1024;
inline constexpr size_t kMaxHeldText = 256;
// Moments waiting to be stored, and in total, per session: a job that runs out
// of memory in every step must not fill the store.
inline constexpr size_t kMaxMomentsWaiting = 8;
inline constexpr uint32_t kMaxMomentsEver = 64;

// Returns the moment of a killed job. Impossible values are omitted.
v1::Moment MomentOf(const reprise_place& place);

// Parses the moment of a job that is still running. INVALID_ARGUMENT, naming
// the field: it is not such a moment in JSON, or larger than allowed. Long
// texts are truncated; storages beyond the limit are counted in
// `more_storages`.
StatusOr<v1::Moment> ParseMoment(std::string_view json);

class AgentSession {
 public:
  using Clock = std::chrono::steady_clock;

  // A session from the spool, or a new one; then ParseHello has filled `row`.
  AgentSession(SpooledSession row, std::vector<SpooledName> names);

  const SpooledSession& row() const { return row_; }
  uint64_t last_name() const { return last_committed_name_; }
  const v1::SessionInfo& info() const { return info_; }
  v1::Hello Hello() const;
  v1::Bye Bye() const;  // once ended
  AgentSnapshot Snapshot() const;
  bool ended() const { return row_.end != SessionEnd::kRunning; }
  bool ending() const { return bye_.has_value() || writer_gone_; }

  // -- Connection --

  bool connected() const { return socket_.valid(); }
  const Fd& socket() const { return socket_; }
  const std::optional<RingReader>& ring() const { return ring_; }
  Clock::time_point disconnected_at() const { return disconnected_at_; }

  // Takes over a checked connection. `ring` is absent if it is the one already
  // attached.
  void Connect(Fd socket, std::optional<RingReader> ring, const Peer& peer,
               uint64_t peer_ticks);
  void Disconnect(Clock::time_point now);

  // Handles one message. On an error the caller must close the connection.
  Status Handle(Message message, Clock::time_point now);

  // Queues an answer of the relay, or a new plan, for the agent.
  void Deliver(const PlanAnswer& answer);

  void Command(uint32_t command, uint32_t steps = 0);

  // Asks the agent for a window: at once, or when its step is close enough.
  void OpenWindow(const v1::OpenWindow& window);

  // Returns the agent's capabilities if it has reported them since the last
  // call.
  std::optional<v1::Caps> TakeNewCapabilities();

  // Sends what is queued, as far as the agent's queue takes it.
  // RESOURCE_EXHAUSTED: the agent keeps asking but never reads the answers.
  Status Flush();

  // Notes the ring's head; later records are not read before the next call.
  // Call it before reading the socket, so that the DEFS of a record always come
  // first.
  void MarkHead();

  // -- Ring --

  // The process is gone: records that are not published now never will be.
  void WriterGone() { writer_gone_ = true; }

  // Builds the chunks to be stored next; returns false if nothing is due.
  // `force`: do not wait for more records. DATA_LOSS: the ring is corrupt, and
  // the session ends.
  StatusOr<bool> Prepare(std::span<reprise_slot> scratch, bool force,
                         Clock::time_point now);
  size_t prepared_chunks() const { return built_.chunks.size(); }
  uint64_t prepared_positions() const { return positions_; }
  Status Store(Spool& spool) const;
  // Totals of what the transaction stored.
  struct Stored {
    uint64_t chunks = 0;
    uint64_t records = 0;
    int64_t bytes = 0;
  };
  Stored Committed();

  // Submits the graphs whose step has been read completely from the ring.
  void SubmitGraphs(PlanRelay& relay, Clock::time_point now);

  // Returns whether everything published before the last MarkHead is stored.
  bool Drained() const;

  // Starts another epoch; the next transaction stores it.
  void StartEpoch(uint64_t epoch);

  // Bytes of the session's chunks in the spool. Maintained by the drain loop.
  int64_t spooled_bytes = 0;

 private:
  struct Outgoing {
    uint16_t type = 0;
    std::string body;
    std::shared_ptr<const EncodedPlan> plan;  // sent as a memfd
  };

  Status HandleNames(std::string_view body);
  void HandleCapabilities(std::string_view body);
  void SendWaitingWindow();
  Status HandleBye(std::string_view body, Clock::time_point now);
  Status HandleGraph(Message& message, Clock::time_point now);
  void HandleSnapshot(const Message& message);
  void Note(std::string line);
  void Join(std::span<const reprise_slot> records);
  void AddName(uint32_t id, std::string_view text);
  void DeliverReplan(const PlanAnswer& answer);
  void SendPlan(uint64_t answer_id, std::shared_ptr<const EncodedPlan> plan);
  void SendPlanStatus(uint64_t answer_id, uint32_t status,
                      uint64_t smallest_budget, std::string_view sentence);
  void FinishRow(SpooledSession& row) const;

  SpooledSession row_;
  bool row_changed_ = false;
  v1::SessionInfo info_;

  NameTable names_;
  size_t names_bytes_ = 0;
  bool names_full_ = false;
  uint64_t last_name_ = 0;
  uint64_t last_committed_name_ = 0;
  std::vector<SpooledName> new_names_;

  Fd socket_;
  Clock::time_point disconnected_at_{};
  std::optional<RingReader> ring_;
  uint64_t marked_head_ = 0;
  std::optional<reprise_msg_bye> bye_;
  Clock::time_point bye_at_{};
  bool writer_gone_ = false;
  std::vector<std::string> capabilities_;
  bool capabilities_changed_ = false;
  uint64_t last_step_ = 0;  // newest STEP mark
  std::optional<v1::OpenWindow> waiting_window_;
  std::deque<Outgoing> outbox_;

  // A graph received while records of its step were still in the ring.
  struct WaitingGraph {
    PlanWish wish;
    Mapping json;
    uint64_t head = 0;  // records below belong to it
    Clock::time_point since;
  };
  std::vector<WaitingGraph> waiting_graphs_;
  // Moments that are not stored yet, and how many of them the next transaction
  // will store.
  std::vector<v1::Moment> waiting_moments_;
  size_t storing_moments_ = 0;
  uint32_t moments_taken_ = 0;
  OpJoin join_;
  // Records from the ring's position on that join_ already has.
  uint64_t joined_ = 0;

  std::vector<PlanWish> asked_;
  std::vector<PlanAnswer> answers_;

  // Valid between Prepare and Committed.
  Built built_;
  SpooledSession next_row_;
  uint64_t positions_ = 0;
  std::optional<Clock::time_point> unread_since_;
  std::optional<Clock::time_point> name_wait_since_;
  bool names_late_ = false;
};

}  // namespace reprise::server
