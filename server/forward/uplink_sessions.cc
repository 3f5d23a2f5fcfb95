// SPDX-License-Identifier: Apache-2.0
//
// What an uplink finds in the store, and what it tells the forwarder.
#include <algorithm>
#include <set>
#include <utility>

#include "base/str_cat.h"
#include "server/core/log.h"
#include "server/forward/uplink.h"

namespace reprise::server {

namespace {

using Clock = std::chrono::steady_clock;

// When the centre had no room for something of a run.
constexpr auto kFullPause = std::chrono::seconds(30);

}  // namespace

Status Uplink::Look() {
  RETURN_IF_ERROR(SettleFinished());
  ASSIGN_OR_RETURN(std::vector<ListedSession> listed, store_.Get(ListSessions));
  RETURN_IF_ERROR(DropRemoved(listed));
  const std::vector<ListedSession> chosen = Choose(listed);
  if (!greeted_) {
    RETURN_IF_ERROR(runs_.Greet());
    greeted_ = true;
  }
  no_room_.clear();
  for (const ListedSession& session : chosen) {
    RETURN_IF_ERROR(Follow(session));
  }
  // A run may get a plan or an exit code after its sessions have ended.
  for (const ListedSession& session : listed) {
    if (!runs_.Due(session.run_id, session.run)) continue;
    RETURN_IF_ERROR(SendRun(session.run_id, session.run));
  }
  (void)Choose(listed);  // counts anew
  return OkStatus();
}

std::vector<ListedSession> Uplink::Choose(
    const std::vector<ListedSession>& listed) {
  std::vector<ListedSession> chosen;
  std::set<std::string> runs;
  uint64_t chunks = 0;
  uint64_t waiting = 0;
  const std::lock_guard lock(mutex_);
  for (const ListedSession& session : listed) {
    if (runs_.Due(session.run_id, session.run)) runs.insert(session.run_id);
    const auto ended = ended_.find(session.session_id);
    const bool has = ended != ended_.end() && !session.running &&
                     ended->second >= session.committed;
    if (has) continue;
    const bool known = sessions_.contains(session.session_id);
    if (!known && !session.running && sessions_.size() >= kMostSessions) {
      chunks += session.committed;
      ++waiting;
      continue;
    }
    Session& to = sessions_[session.session_id];
    to.run_id = session.run_id;
    to.total = std::max(to.total, session.committed);
    chosen.push_back(session);
  }
  waiting_chunks_ = chunks;
  waiting_sessions_ = waiting;
  waiting_runs_ = runs.size();
  bool behind = waiting + runs.size() > 0;
  for (const auto& [session_id, session] : sessions_) {
    const uint64_t taken = session.of_before + forwarder_->AckedOf(session.key);
    behind |= !session.finished && (session.bye || taken < session.total);
  }
  if (!behind) behind_since_ns_ = 0;
  if (behind && behind_since_ns_ == 0) behind_since_ns_ = RealtimeNs();
  return chosen;
}

Status Uplink::Follow(const ListedSession& listed) {
  const uint64_t version = hub_.VersionOf(listed.run_id);
  {
    const std::lock_guard lock(mutex_);
    const Session& session = sessions_[listed.session_id];
    if (session.finished) return OkStatus();
    if (session.version == version && !session.more_epochs) return OkStatus();
  }
  ASSIGN_OR_RETURN(std::vector<StoredSession> epochs,
                   store_.Get(LoadStoredSession, listed.session_id));
  if (epochs.empty()) return OkStatus();
  // After the records were read, so that these name no plan that comes later.
  RETURN_IF_ERROR(SendRun(listed.run_id, listed.run));
  const std::lock_guard lock(mutex_);
  Session& session = sessions_[listed.session_id];
  if (session.finished) return OkStatus();
  session.version = version;
  Tell(listed.session_id, session, epochs);
  return OkStatus();
}

Status Uplink::SendRun(const std::string& run_id, const RunFacts& facts) {
  const uint64_t version = hub_.VersionOf(run_id);
  const auto sent = sent_runs_.find(run_id);
  const bool same = sent != sent_runs_.end() && sent->second == version;
  if (same && !runs_.Due(run_id, facts)) return OkStatus();
  if (const auto full = full_.find(run_id);
      full != full_.end() && Clock::now() < full->second) {
    return OkStatus();
  }
  const Status status = runs_.Send(run_id, facts);
  if (status.ok()) {
    sent_runs_[run_id] = version;
    full_.erase(run_id);
    return OkStatus();
  }
  if (status.code() == Code::kUnavailable) return status;
  full_[run_id] = Clock::now() + kFullPause;
  no_room_ =
      StrCat("centre ", options_.target, " does not take the plans of run ",
             run_id, ": ", status.message());
  return OkStatus();
}

void Uplink::Tell(const std::string& session_id, Session& session,
                  const std::vector<StoredSession>& epochs) {
  if (session.key == 0) session.key = ++last_key_;
  auto now = std::find_if(epochs.begin(), epochs.end(), [&](const auto& e) {
    return e.hello.producer_epoch() == session.epoch;
  });
  // Epochs go one after the other: the next one begins when all of this one was
  // acknowledged.
  if (now == epochs.end()) {
    now = epochs.begin();
  } else if (now + 1 != epochs.end() &&
             forwarder_->AckedOf(session.key) >= now->committed) {
    session.of_before += now->committed;
    ++now;
  }
  session.more_epochs = now + 1 != epochs.end();
  session.total = 0;
  for (const StoredSession& epoch : epochs) session.total += epoch.committed;
  const bool begins = session.epoch != now->hello.producer_epoch();
  if (begins) {
    session.epoch = now->hello.producer_epoch();
    chunks_->Set(session.key, session_id, session.epoch);
    forwarder_->SetSession(session.key, now->hello, now->committed, now->names);
  } else if (session.committed != now->committed ||
             session.names != now->names) {
    forwarder_->Committed(session.key, now->committed, now->names);
  }
  session.committed = now->committed;
  session.names = now->names;
  std::string caps = now->caps.SerializeAsString();
  if (begins || caps != session.caps) {
    forwarder_->SetCaps(session.key, now->caps);
    session.caps = std::move(caps);
  }
  if (session.more_epochs || !now->bye || session.bye) return;
  session.bye = true;
  session.until_bye = session.total;
  forwarder_->Ended(session.key, *now->bye);
}

// Notes the sessions whose end was acknowledged since the last look.
Status Uplink::SettleFinished() {
  std::map<std::string, Session> finished;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [session_id, session] : sessions_) {
      if (session.finished) finished.emplace(session_id, session);
    }
  }
  for (const auto& [session_id, session] : finished) {
    RETURN_IF_ERROR(outbox_.SetEnded(session_id, session.until_bye));
    ended_[session_id] = session.until_bye;
    chunks_->Forget(session.key);
    const std::lock_guard lock(mutex_);
    sessions_.erase(session_id);
  }
  return OkStatus();
}

// Forgets what was removed from the store.
Status Uplink::DropRemoved(const std::vector<ListedSession>& listed) {
  std::set<std::string> stored;
  std::set<std::string> runs;
  for (const ListedSession& session : listed) {
    stored.insert(session.session_id);
    runs.insert(session.run_id);
  }
  RETURN_IF_ERROR(runs_.KeepOnly(runs));
  std::erase_if(sent_runs_,
                [&](const auto& run) { return !runs.contains(run.first); });
  std::erase_if(full_,
                [&](const auto& run) { return !runs.contains(run.first); });
  for (auto ended = ended_.begin(); ended != ended_.end();) {
    if (stored.contains(ended->first)) {
      ++ended;
      continue;
    }
    RETURN_IF_ERROR(outbox_.RemoveEnded(ended->first));
    ended = ended_.erase(ended);
  }
  const std::lock_guard lock(mutex_);
  for (auto known = sessions_.begin(); known != sessions_.end();) {
    auto& [session_id, session] = *known;
    if (stored.contains(session_id) || session.finished) {
      ++known;
      continue;
    }
    const uint64_t taken = session.of_before + forwarder_->AckedOf(session.key);
    if (taken < session.total) {
      LogWarning("forward_failed",
                 StrCat("run ", session.run_id,
                        " was removed here before the centre had all of it"),
                 {{"run_id", session.run_id}});
    }
    if (session.key == 0) {
      known = sessions_.erase(known);
      continue;
    }
    // The centre learns that nothing more comes.
    if (!session.bye) {
      v1::Bye bye;
      bye.set_ended_ns(RealtimeNs());
      session.bye = true;
      forwarder_->Ended(session.key, bye);
    }
    ++known;
  }
  return OkStatus();
}

}  // namespace reprise::server
