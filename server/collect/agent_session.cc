// SPDX-License-Identifier: Apache-2.0
#include "server/collect/agent_session.h"

#include <algorithm>
#include <utility>

namespace reprise::server {

namespace {

using std::chrono::milliseconds;

// Fewer records than this wait for more, but not long: the ring keeps them.
constexpr uint64_t kWorthReading = 512;
constexpr milliseconds kLongestWait{50};
// A report whose name never arrives must not block the ring. After this time
// the session stops waiting for names, until new ones arrive.
constexpr milliseconds kNameWait{1000};
// After BYE, other threads may still be publishing slots that they reserved.
constexpr milliseconds kByeWait{1000};
constexpr uint64_t kLargestCount = uint64_t{1} << 62;

}  // namespace

AgentSession::AgentSession(SpooledSession row, std::vector<SpooledName> names)
    : row_(std::move(row)), disconnected_at_(Clock::now()) {
  info_.ParseFromString(row_.info);
  for (SpooledName& name : names) {
    last_name_ = last_committed_name_ = std::max(last_name_, name.ordinal);
    names_bytes_ += name.text.size();
    names_.emplace(name.name, std::move(name.text));
  }
}

v1::Hello AgentSession::Hello() const {
  v1::Hello hello;
  hello.set_session_id(row_.session_id);
  hello.set_run_id(row_.run_id);
  hello.set_producer_epoch(row_.epoch);
  *hello.mutable_info() = info_;
  return hello;
}

v1::Bye AgentSession::Bye() const {
  v1::Bye bye;
  bye.set_killed(row_.end == SessionEnd::kKilled);
  bye.set_pushed(row_.pushed);
  bye.set_dropped(row_.dropped);
  bye.set_torn(row_.torn);
  return bye;
}

AgentSnapshot AgentSession::Snapshot() const {
  uint64_t dropped = row_.dropped;
  if (ring_) dropped = std::max(dropped, ring_->dropped());
  return {.session_id = row_.session_id,
          .run_id = row_.run_id,
          .pid = info_.pid(),
          .rank = info_.rank(),
          .connected = connected(),
          .records = row_.records,
          .dropped = dropped,
          .torn = row_.torn,
          .capabilities = capabilities_};
}

void AgentSession::Connect(Fd socket, std::optional<RingReader> ring,
                           const Peer& peer, uint64_t peer_ticks) {
  socket_ = std::move(socket);
  if (ring) ring_ = std::move(ring);
  row_.peer_pid = peer_ticks != 0 ? peer.pid : 0;
  row_.peer_ticks = peer_ticks;
  outbox_.clear();
  // On the new connection the agent repeats the requests of the old one.
  MarkHead();
}

void AgentSession::Disconnect(Clock::time_point now) {
  socket_ = Fd();
  disconnected_at_ = now;
  outbox_.clear();
}

void AgentSession::MarkHead() {
  if (ring_) marked_head_ = ring_->head();
}

// ---- Storing ----

StatusOr<bool> AgentSession::Prepare(std::span<reprise_slot> scratch,
                                     bool force, Clock::time_point now) {
  built_ = Built();
  positions_ = 0;
  storing_moments_ = 0;
  if (ended()) return row_changed_;
  next_row_ = row_;

  RingReader::Batch batch;
  uint64_t backlog = 0;
  if (ring_) {
    auto known = ring_->Backlog();
    if (!known.ok()) {
      ring_.reset();
      writer_gone_ = true;
      return known.status();
    }
    backlog = *known;
    if (backlog == 0) {
      unread_since_.reset();
    } else if (!unread_since_) {
      unread_since_ = now;
    }
    const bool due = force || ending() || row_changed_ ||
                     !waiting_graphs_.empty() || !waiting_moments_.empty() ||
                     backlog >= kWorthReading ||
                     (unread_since_ && now - *unread_since_ >= kLongestWait);
    if (!due) return false;
    const bool all_published =
        writer_gone_ || (bye_ && now - bye_at_ > kByeWait);
    const uint64_t readable =
        all_published ? scratch.size()
                      : std::min<uint64_t>(scratch.size(),
                                           marked_head_ - ring_->position());
    auto peeked = ring_->Peek(scratch.first(readable), all_published);
    if (!peeked.ok()) return peeked.status();  // the next Prepare ends it
    batch = *peeked;
  }

  Join(scratch.first(batch.records));
  const bool at_end = ending() && batch.positions == backlog;
  if (name_wait_since_ && now - *name_wait_since_ > kNameWait) {
    names_late_ = true;
  }
  const bool wait_for_names = !ending() && !names_late_;
  std::vector<v1::Moment> moments = waiting_moments_;
  storing_moments_ = moments.size();
  if (at_end && !bye_ && ring_) {
    // The job never began a step: there is nothing to report.
    const reprise_place place = ring_->place();
    if (place.step_ns != 0) moments.push_back(MomentOf(place));
  }
  built_ =
      BuildChunks({.records = scratch.first(batch.records),
                   .pending = row_.pending,
                   .names = &names_,
                   .join = &join_,
                   .wait_for_names = wait_for_names,
                   .last = at_end,
                   .moments = moments,
                   .realtime_to_monotonic_ns = row_.realtime_to_monotonic_ns});
  if (!built_.waits_for_name) {
    name_wait_since_.reset();
  } else if (!name_wait_since_) {
    name_wait_since_ = now;
  }
  // Positions and records differ only if torn slots were skipped, and then
  // nothing waits for a name.
  positions_ = built_.waits_for_name ? built_.used : batch.positions;
  if (positions_ == 0 && !at_end && !row_changed_ && moments.empty()) {
    return false;
  }

  next_row_.ring_position += positions_;
  next_row_.next_seq += built_.chunks.size();
  next_row_.records += built_.used;
  next_row_.torn =
      std::min(row_.torn + batch.torn + built_.malformed, kLargestCount);
  next_row_.dropped = std::min(row_.dropped + built_.dropped, kLargestCount);
  next_row_.pending = built_.pending;
  if (at_end) FinishRow(next_row_);
  return true;
}

// A batch that could not be committed is read again and may be longer by then.
void AgentSession::Join(std::span<const reprise_slot> records) {
  for (; joined_ < records.size(); ++joined_) {
    reprise_slot copy;
    const reprise_slot* slot =
        OnClock(records[joined_], row_.realtime_to_monotonic_ns, copy);
    if (slot == nullptr) continue;
    if (slot->kind == REPRISE_RECORD_STEP) last_step_ = slot->body.step.step;
    join_.Take(*slot);
  }
  SendWaitingWindow();
}

void AgentSession::FinishRow(SpooledSession& row) const {
  row.end = bye_ ? SessionEnd::kSaidSo : SessionEnd::kKilled;
  row.pushed = ring_ ? ring_->head() : row.ring_position;
  if (ring_) row.dropped = std::max(row.dropped, ring_->dropped());
  if (bye_) {
    row.pushed = std::min(bye_->pushed, kLargestCount);
    row.dropped = std::max(row.dropped, std::min(bye_->dropped, kLargestCount));
  }
}

Status AgentSession::Store(Spool& spool) const {
  for (const SpooledName& name : new_names_) {
    RETURN_IF_ERROR(spool.AddName(row_.key, name));
  }
  uint64_t seq = row_.next_seq;
  for (const v1::Chunk& chunk : built_.chunks) {
    RETURN_IF_ERROR(spool.AddChunk(row_.key, seq++, chunk));
  }
  return spool.SaveSession(next_row_);
}

AgentSession::Stored AgentSession::Committed() {
  Stored stored{.chunks = built_.chunks.size(), .records = built_.used};
  for (const v1::Chunk& chunk : built_.chunks) {
    stored.bytes += static_cast<int64_t>(chunk.body().size());
  }
  waiting_moments_.erase(
      waiting_moments_.begin(),
      waiting_moments_.begin() + static_cast<std::ptrdiff_t>(storing_moments_));
  storing_moments_ = 0;
  joined_ -= std::min<uint64_t>(joined_, built_.used);
  row_ = std::move(next_row_);
  row_changed_ = false;
  new_names_.clear();
  last_committed_name_ = last_name_;
  built_ = Built();
  if (ring_ && positions_ > 0) ring_->Release(positions_);
  positions_ = 0;
  unread_since_.reset();
  if (ended()) {
    ring_.reset();
    names_.clear();
    join_ = OpJoin();
    waiting_graphs_.clear();
  }
  return stored;
}

bool AgentSession::Drained() const {
  return !row_changed_ && waiting_moments_.empty() &&
         (!ring_ || ring_->position() >= marked_head_);
}

void AgentSession::StartEpoch(uint64_t epoch) {
  row_.epoch = epoch;
  next_row_ = row_;
  row_changed_ = true;
}

}  // namespace reprise::server
