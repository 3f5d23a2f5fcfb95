// SPDX-License-Identifier: Apache-2.0
#include "server/collect/drain_loop.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "base/str_cat.h"
#include "base/units.h"
#include "server/collect/process.h"

namespace reprise::server {

namespace {

using std::chrono::milliseconds;

constexpr size_t kReadAtOnce = 4 * kChunkRecords;
constexpr size_t kChunksPerTransaction = 16;
constexpr int kTransactionsPerTurn = 16;
constexpr milliseconds kActiveTurn{10};
constexpr milliseconds kIdleTurn{100};
constexpr milliseconds kStaysActive{1000};
constexpr milliseconds kDrainTurn{2};
constexpr milliseconds kStoreRetry{250};
// Acknowledged chunks are deleted together.
constexpr uint64_t kAcksAtOnce = 64;
constexpr milliseconds kAcksWait{200};
constexpr milliseconds kPublishEvery{50};
constexpr int64_t kTrimChunks = 16;

}  // namespace

uint64_t UnixMilliseconds() {
  return static_cast<uint64_t>(
      std::chrono::duration_cast<milliseconds>(
          std::chrono::system_clock::now().time_since_epoch())
          .count());
}

DrainLoop::DrainLoop(CollectorOptions options, Fd listener, Spool spool)
    : options_(std::move(options)),
      boot_id_(CurrentBootId()),
      listener_(std::move(listener)),
      epoll_(epoll_create1(EPOLL_CLOEXEC)),
      wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      spool_(std::move(spool)),
      scratch_(kReadAtOnce) {}

DrainLoop::~DrainLoop() { Stop(); }

Status DrainLoop::Start(Forwarder& forwarder, PlanRelay& relay) {
  forwarder_ = &forwarder;
  relay_ = &relay;
  if (!epoll_.valid() || !wake_.valid()) {
    return ResourceExhausted("collector: no file descriptors left");
  }
  ASSIGN_OR_RETURN(std::vector<SpooledSession> rows, spool_.LoadSessions());
  for (SpooledSession& row : rows) {
    const int64_t key = row.key;
    last_key_ = std::max(last_key_, key);
    ASSIGN_OR_RETURN(std::vector<SpooledName> names, spool_.LoadNames(key));
    ASSIGN_OR_RETURN(const int64_t bytes, spool_.LoadBytes(key));
    auto session =
        std::make_unique<AgentSession>(std::move(row), std::move(names));
    session->spooled_bytes = bytes;
    spool_bytes_ += bytes;
    forwarder_->SetSession(key, session->Hello(), session->row().next_seq - 1,
                           session->last_name());
    if (session->ended()) forwarder_->Ended(key, session->Bye());
    sessions_.emplace(key, std::move(session));
  }
  Watch(listener_);
  Watch(wake_);
  Publish();
  thread_ = std::thread([this] { Run(); });
  return OkStatus();
}

void DrainLoop::Stop() {
  if (!thread_.joinable()) return;
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  Post([] {});
  thread_.join();
}

// ---- For other threads ----

void DrainLoop::Post(std::function<void()> task) {
  {
    const std::lock_guard lock(mutex_);
    posted_.push_back(std::move(task));
  }
  const uint64_t one = 1;
  (void)!write(wake_.get(), &one, sizeof(one));
}

void DrainLoop::Acked(int64_t key, uint64_t seq) {
  Post([this, key, seq] {
    uint64_t& up_to = to_delete_[key];
    unapplied_acks_ += seq > up_to ? 1 : 0;
    up_to = std::max(up_to, seq);
  });
}

void DrainLoop::Finished(int64_t key) {
  Post([this, key] { to_forget_.push_back(key); });
}

void DrainLoop::EpochTaken(int64_t key) {
  Post([this, key] {
    const auto found = sessions_.find(key);
    if (found == sessions_.end()) return;
    AgentSession& session = *found->second;
    session.StartEpoch(std::max(session.row().epoch + 1, UnixMilliseconds()));
    forwarder_->SetSession(key, session.Hello(), session.row().next_seq - 1,
                           session.last_name());
  });
}

void DrainLoop::Answered(PlanAnswer answer) {
  Post([this, answer = std::move(answer)] {
    const auto found = sessions_.find(answer.session);
    if (found != sessions_.end()) found->second->Deliver(answer);
  });
}

void DrainLoop::BeginDrain() {
  Post([this] {
    if (std::exchange(draining_, true)) return;
    listener_ = Fd();
    newcomers_.clear();
    for (const auto& [key, session] : sessions_) {
      if (session->connected()) session->Command(REPRISE_COMMAND_FLUSH);
    }
  });
}

std::vector<AgentSnapshot> DrainLoop::Agents() const {
  const std::lock_guard lock(mutex_);
  return snapshot_;
}

CollectorStats DrainLoop::stats() const {
  return {.records = records_, .chunks_spooled = chunks_, .refused = refused_};
}

std::string DrainLoop::trouble() const {
  const std::lock_guard lock(mutex_);
  return trouble_;
}

// ---- The thread ----

void DrainLoop::Run() {
  while (true) {
    {
      const std::lock_guard lock(mutex_);
      if (stop_) break;
    }
    epoll_event events[8];
    epoll_wait(epoll_.get(), events, 8, WaitMilliseconds());
    uint64_t wakes;
    (void)!read(wake_.get(), &wakes, sizeof(wakes));
    RunPosted();
    if (listener_.valid()) Accept();
    ReadNewcomers();
    ReadSockets();
    CheckProcesses();
    StoreAll();
    ApplyDeletes();
    FlushSockets();
    if (Clock::now() - published_at_ >= kPublishEvery) Publish();
  }
  RunPosted();
  ApplyDeletes();
  (void)spool_.Checkpoint();
}

void DrainLoop::RunPosted() {
  std::vector<std::function<void()>> tasks;
  {
    const std::lock_guard lock(mutex_);
    tasks.swap(posted_);
  }
  for (const auto& task : tasks) task();
}

int DrainLoop::WaitMilliseconds() const {
  if (socket_backlog_) return 0;
  const bool active = Clock::now() - active_at_ < kStaysActive;
  const auto turn = draining_ ? kDrainTurn : active ? kActiveTurn : kIdleTurn;
  return static_cast<int>(turn.count());
}

void DrainLoop::StoreAll() {
  if (Clock::now() < retry_at_) return;
  bool all_drained = draining_;
  for (int i = 0; i < kTransactionsPerTurn; ++i) {
    size_t taken = 0;
    if (!StoreSome(taken)) break;
    all_drained = false;
    if (taken < kChunksPerTransaction) break;
  }
  for (const auto& [key, session] : sessions_) {
    all_drained = all_drained && session->Drained() &&
                  (session->ended() || !session->ending());
  }
  if (all_drained && to_forget_.empty() && to_delete_.empty()) {
    drained_ = true;
  }
}

// One transaction. `taken`: its chunks. False: there was nothing to store, or
// it could not be stored.
bool DrainLoop::StoreSome(size_t& taken) {
  const auto now = Clock::now();
  // On a nearly full disk a small transaction may fit where a large one, in
  // the WAL as a whole before it is moved, does not.
  const size_t most_chunks = short_of_room_ ? 1 : kChunksPerTransaction;
  const std::span<reprise_slot> scratch =
      std::span(scratch_).first(short_of_room_ ? kChunkRecords : kReadAtOnce);
  std::vector<AgentSession*> due;
  for (const auto& [key, session] : sessions_) {
    if (taken >= most_chunks) break;
    auto prepared = session->Prepare(scratch, draining_, now);
    if (!prepared.ok()) {
      Log(StrCat("session ", session->row().session_id, ": ",
                 prepared.status().message(), "; it is cut off"));
      ++refused_;
      Refuse(session->socket(), prepared.status().message());
      CloseSocket(*session);
      session->WriterGone();
      continue;
    }
    if (!*prepared) continue;
    taken += session->prepared_chunks();
    due.push_back(session.get());
  }
  if (due.empty()) return false;
  active_at_ = now;
  const Status status = Commit(due);
  SetTrouble(status);
  short_of_room_ = !status.ok();
  if (!status.ok()) {
    // What was read stays in the rings. Moving the WAL into the file may give
    // back the room that is missing.
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
    Log(StrCat("session ", row.session_id, ": ",
               row.end == SessionEnd::kKilled ? "was killed" : "ended",
               " after ", row.records, " records, ", row.dropped, " dropped, ",
               row.torn, " torn"));
  }
}

// Keeps the spool below its cap: the session that has the most loses its
// oldest chunks. The forwarder finds the hole and reports it as Lost.
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
    Log(StrCat("spool: reached its cap of ",
               FormatBytes(options_.spool_max_bytes), ", trimmed ", gone.first,
               " chunks of session ", largest->second->row().session_id));
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

void DrainLoop::Publish() {
  std::vector<AgentSnapshot> snapshot;
  for (const auto& [key, session] : sessions_) {
    snapshot.push_back(session->Snapshot());
  }
  published_at_ = Clock::now();
  const std::lock_guard lock(mutex_);
  snapshot_ = std::move(snapshot);
}

void DrainLoop::SetTrouble(const Status& status) {
  std::string text;
  if (!status.ok()) {
    text = StrCat("spool: ", status.message(), "; records wait in the rings");
  }
  bool changed = false;
  {
    const std::lock_guard lock(mutex_);
    changed = trouble_ != text;
    trouble_ = text;
  }
  if (changed) Log(text.empty() ? "spool: stores again" : text);
}

void DrainLoop::Log(const std::string& line) const {
  if (options_.log) options_.log(line);
}

}  // namespace reprise::server
