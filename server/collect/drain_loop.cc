// SPDX-License-Identifier: Apache-2.0
#include "server/collect/drain_loop.h"

#include <pthread.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <future>
#include <utility>

#include "base/str_cat.h"
#include "server/collect/process.h"

namespace reprise::server {

namespace {

using std::chrono::milliseconds;

constexpr milliseconds kActiveTurn{10};
constexpr milliseconds kIdleTurn{100};
constexpr milliseconds kStaysActive{1000};
constexpr milliseconds kDrainTurn{2};
constexpr milliseconds kPublishEvery{50};

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
      scratch_(kChunksPerTransaction * kChunkRecords) {}

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

void DrainLoop::PostTo(int64_t key, std::function<void(AgentSession&)> task) {
  Post([this, key, task = std::move(task)] {
    const auto found = sessions_.find(key);
    if (found != sessions_.end()) task(*found->second);
  });
}

void DrainLoop::EpochTaken(int64_t key) {
  PostTo(key, [this, key](AgentSession& session) {
    session.StartEpoch(std::max(session.row().epoch + 1, UnixMilliseconds()));
    forwarder_->SetSession(key, session.Hello(), session.row().next_seq - 1,
                           session.last_name());
  });
}

void DrainLoop::Answered(PlanAnswer answer) {
  const int64_t key = answer.session;
  PostTo(key, [answer = std::move(answer)](AgentSession& session) {
    session.Deliver(answer);
  });
}

void DrainLoop::OpenWindow(int64_t key, const v1::OpenWindow& window) {
  PostTo(key, [window](AgentSession& session) { session.OpenWindow(window); });
}

bool DrainLoop::Retire() {
  std::promise<bool> retired;
  Post([this, &retired] {
    if (listener_.valid()) Accept();
    const bool needed = !newcomers_.empty() || !sessions_.empty();
    if (!needed) listener_ = Fd();
    retired.set_value(!needed);
  });
  return retired.get_future().get();
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
  pthread_setname_np(pthread_self(), "reprise-drain");
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
    WatchListener();
    ReadSockets();
    CheckProcesses();
    StoreAll();
    for (const auto& [key, session] : sessions_) {
      session->SubmitGraphs(*relay_, Clock::now());
    }
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
  if (socket_backlog_ || more_to_store_) return 0;
  const bool active = Clock::now() - active_at_ < kStaysActive;
  const auto turn = draining_ ? kDrainTurn : active ? kActiveTurn : kIdleTurn;
  return static_cast<int>(turn.count());
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
  const std::lock_guard lock(mutex_);
  trouble_ = std::move(text);
}

}  // namespace reprise::server
