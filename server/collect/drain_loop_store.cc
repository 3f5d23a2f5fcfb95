// SPDX-License-Identifier: Apache-2.0
//
// The drain loop's writes to the spool: records from the rings, deletions of
// what the server has acknowledged, and trimming when the spool is full.
#include <algorithm>
#include <span>
#include <utility>

#include "server/collect/drain_loop.h"

namespace reprise::server {

namespace {

using std::chrono::milliseconds;

constexpr size_t kLeastShare = 4;  // chunks of one session
constexpr int kTransactionsPerTurn = 16;
constexpr milliseconds kStoreRetry{250};
// Acknowledged chunks are deleted in batches.
constexpr uint64_t kAcksAtOnce = 64;
constexpr milliseconds kAcksWait{200};
constexpr int64_t kTrimChunks = 16;

}  // namespace

void DrainLoop::StoreAll() {
  more_to_store_ = false;
  if (Clock::now() < retry_at_) return;
  bool all_drained = draining_;
  for (int i = 0; i < kTransactionsPerTurn; ++i) {
    if (!StoreSome()) break;
    all_drained = false;
    if (!more_to_store_) break;
  }
  for (const auto& [key, session] : sessions_) {
    all_drained = all_drained && session->Drained() &&
                  (session->ended() || !session->ending());
  }
  if (all_drained && to_forget_.empty() && to_delete_.empty()) {
    drained_ = true;
  }
}

// Runs one transaction. Returns false if there was nothing to store, or storing
// failed. Sets more_to_store_ if a ring was not read completely.
bool DrainLoop::StoreSome() {
  const auto now = Clock::now();
  more_to_store_ = false;
  // On a nearly full disk, a small transaction may fit where a large one does
  // not, because it must fit into the WAL as a whole.
  const size_t most_chunks = short_of_room_ ? 1 : kChunksPerTransaction;
  // A single busy ring may use the whole transaction; several share it. Each
  // turn starts after the session that was served last.
  const size_t share = std::max<size_t>(
      most_chunks / std::max<size_t>(sessions_.size(), 1), kLeastShare);
  const std::span<reprise_slot> scratch = std::span(scratch_).first(
      short_of_room_ ? kChunkRecords : share * kChunkRecords);
  std::vector<AgentSession*> due;
  size_t taken = 0;
  auto next = sessions_.upper_bound(last_served_);
  for (size_t i = 0; i < sessions_.size(); ++i, ++next) {
    if (next == sessions_.end()) next = sessions_.begin();
    if (taken >= most_chunks) {
      more_to_store_ = true;
      break;
    }
    const auto& [key, session] = *next;
    last_served_ = key;
    auto prepared = session->Prepare(scratch, draining_, now);
    if (!prepared.ok()) {
      ++refused_;
      Refuse(session->socket(), prepared.status().message());
      CloseSocket(*session);
      session->WriterGone();
      continue;
    }
    if (!*prepared) continue;
    taken += session->prepared_chunks();
    if (session->prepared_positions() >= scratch.size()) more_to_store_ = true;
    due.push_back(session.get());
  }
  if (due.empty()) return false;
  active_at_ = now;
  const Status status = Commit(due);
  SetTrouble(status);
  short_of_room_ = !status.ok();
  if (!status.ok()) {
    // What was read is still in the rings. A checkpoint of the WAL may free
    // space.
    (void)spool_.Checkpoint();
    retry_at_ = Clock::now() + kStoreRetry;
    return false;
  }
  for (AgentSession* session : due) PassOn(*session, session->Committed());
  return true;
}

Status DrainLoop::Commit(const std::vector<AgentSession*>& due) {
  RETURN_IF_ERROR(Trim());
  return spool_.Transaction([&]() -> Status {
    for (const AgentSession* session : due) {
      RETURN_IF_ERROR(session->Store(spool_));
    }
    return OkStatus();
  });
}

void DrainLoop::PassOn(AgentSession& session,
                       const AgentSession::Stored& stored) {
  const SpooledSession& row = session.row();
  session.spooled_bytes += stored.bytes;
  spool_bytes_ += stored.bytes;
  records_ += stored.records;
  chunks_ += stored.chunks;
  forwarder_->Committed(row.key, row.next_seq - 1, session.last_name());
  if (session.ended()) {
    forwarder_->Ended(row.key, session.Bye());
    relay_->Forget(row.key);
    if (session.connected()) CloseSocket(session);
  }
}

// Keeps the spool below its limit: the session with the most bytes loses its
// oldest chunks. The forwarder finds the gap and reports it as Lost.
Status DrainLoop::Trim() {
  while (spool_bytes_ > options_.spool_max_bytes && !sessions_.empty()) {
    const auto largest = std::max_element(
        sessions_.begin(), sessions_.end(), [](const auto& a, const auto& b) {
          return a.second->spooled_bytes < b.second->spooled_bytes;
        });
    std::pair<int64_t, int64_t> gone;
    RETURN_IF_ERROR(spool_.Transaction([&]() -> Status {
      ASSIGN_OR_RETURN(gone, spool_.DeleteOldest(largest->first, kTrimChunks));
      return OkStatus();
    }));
    if (gone.first == 0) return OkStatus();
    largest->second->spooled_bytes -= gone.second;
    spool_bytes_ -= gone.second;
  }
  return OkStatus();
}

void DrainLoop::ApplyDeletes() {
  if (to_delete_.empty() && to_forget_.empty()) return;
  const auto now = Clock::now();
  if (deletes_since_ == Clock::time_point{}) deletes_since_ = now;
  const bool due = draining_ || !to_forget_.empty() ||
                   unapplied_acks_ >= kAcksAtOnce ||
                   now - deletes_since_ >= kAcksWait;
  if (!due || now < retry_at_) return;
  std::map<int64_t, int64_t> freed;
  const Status status = spool_.Transaction([&]() -> Status {
    for (const auto& [key, seq] : to_delete_) {
      ASSIGN_OR_RETURN(freed[key], spool_.DeleteUpTo(key, seq));
    }
    for (const int64_t key : to_forget_) {
      RETURN_IF_ERROR(spool_.DeleteSession(key));
    }
    return OkStatus();
  });
  if (!status.ok()) {
    SetTrouble(status);
    retry_at_ = now + kStoreRetry;
    return;
  }
  for (const auto& [key, bytes] : freed) {
    spool_bytes_ -= bytes;
    const auto found = sessions_.find(key);
    if (found != sessions_.end()) found->second->spooled_bytes -= bytes;
  }
  for (const int64_t key : to_forget_) {
    const auto found = sessions_.find(key);
    if (found == sessions_.end()) continue;
    spool_bytes_ -= found->second->spooled_bytes;
    sessions_.erase(found);
  }
  to_delete_.clear();
  to_forget_.clear();
  unapplied_acks_ = 0;
  deletes_since_ = {};
  published_at_ = {};
}

}  // namespace reprise::server
