// SPDX-License-Identifier: Apache-2.0
//
// The uplink's thread, and what others ask of it. What it does with sessions is
// in uplink_sessions.cc.
#include "server/forward/uplink.h"

#include <pthread.h>

#include <algorithm>
#include <utility>

#include "base/str_cat.h"
#include "server/core/log.h"

namespace reprise::server {

namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

// Many commits in a row make one look, and looks take a tenth of the time at
// most.
constexpr milliseconds kShortestPause{100};
constexpr milliseconds kLongestPause{5000};
constexpr milliseconds kIdle{1000};
constexpr milliseconds kDrainPoll{20};

}  // namespace

Uplink::Uplink(Store& store, RunHub& hub, ForwardOptions options,
               const std::shared_ptr<grpc::Channel>& channel,
               int64_t started_ns, Outbox outbox, Relay relay)
    : store_(store),
      hub_(hub),
      options_(std::move(options)),
      relay_(std::move(relay)),
      outbox_(std::move(outbox)),
      runs_(store, channel, options_, outbox_, started_ns) {
  auto chunks = std::make_unique<StoredChunks>(store);
  chunks_ = chunks.get();
  forwarder_ = std::make_unique<Forwarder>(
      channel, std::move(chunks), StrCat("centre ", options_.target),
      ForwarderEvents{
          .acked = [](int64_t, uint64_t) {},
          .finished = [this](int64_t key) { Finished(key); },
          .epoch_taken = [this](int64_t key) { EpochTaken(key); },
          .asked = [this](int64_t key,
                          const v1::Down& down) { Asked(key, down); }});
  thread_ = std::thread([this] { Loop(); });
}

Uplink::~Uplink() { Stop(); }

void Uplink::Stop() {
  {
    const std::lock_guard lock(mutex_);
    if (stop_) return;
    stop_ = true;
  }
  stopped_.notify_all();
  runs_.Cancel();
  hub_.Wake();
  thread_.join();
  forwarder_->Stop();
}

bool Uplink::stopping() const {
  const std::lock_guard lock(mutex_);
  return stop_;
}

void Uplink::FillStatus(v1::ForwardStatus& status) const {
  const std::lock_guard lock(mutex_);
  status.set_target(options_.target);
  status.set_trouble(trouble_);
  uint64_t chunks = waiting_chunks_;
  uint64_t behind = waiting_sessions_;
  for (const auto& [session_id, session] : sessions_) {
    if (session.finished) continue;
    const uint64_t taken = session.of_before + forwarder_->AckedOf(session.key);
    const uint64_t due = session.total - std::min(taken, session.total);
    chunks += due;
    behind += due > 0 || session.bye ? 1 : 0;
  }
  status.set_chunks(chunks);
  status.set_sessions(behind);
  status.set_runs(waiting_runs_);
  status.set_acked(forwarder_->counts().acked);
  if (chunks + behind + waiting_runs_ > 0) {
    status.set_behind_since_ns(behind_since_ns_);
  }
}

void Uplink::Drain(milliseconds within) {
  const auto until = Clock::now() + within;
  while (Clock::now() < until) {
    v1::ForwardStatus status;
    const uint64_t seen = hub_.total();
    FillStatus(status);
    if (!status.trouble().empty()) return;
    const bool behind = status.chunks() + status.sessions() + status.runs() > 0;
    // What was stored meanwhile is seen at the next look.
    if (!behind && LookedAt(seen)) return;
    std::this_thread::sleep_for(kDrainPoll);
  }
}

bool Uplink::LookedAt(uint64_t total) const {
  const std::lock_guard lock(mutex_);
  return looked_ && looked_at_ == total;
}

// ---- The thread ----

void Uplink::Pause(milliseconds time) {
  std::unique_lock lock(mutex_);
  stopped_.wait_for(lock, time, [this] { return stop_; });
}

// Notes the trouble; logs it when it begins and when it ends.
void Uplink::Say(const std::string& trouble) {
  std::string before;
  {
    const std::lock_guard lock(mutex_);
    before = std::exchange(trouble_, trouble);
  }
  if (before == trouble) return;
  if (trouble.empty()) {
    LogInfo("forwarding", StrCat("centre ", options_.target,
                                 " takes what is stored here again"));
  } else if (before.empty()) {
    LogWarning("forward_failed",
               StrCat(trouble, "; what it does not have is kept here"));
  }
}

void Uplink::Loop() {
  pthread_setname_np(pthread_self(), "reprise-uplink");
  milliseconds backoff = kShortestPause;
  bool loaded = false;
  while (!stopping()) {
    const uint64_t seen = hub_.total();
    const auto start = Clock::now();
    Status looked = OkStatus();
    if (!loaded) {
      auto ended = outbox_.Ended();
      looked = ended.ok() ? runs_.Load() : ended.status();
      if (ended.ok()) ended_ = *std::move(ended);
      loaded = looked.ok();
    }
    // Why the streams do not get through is told by a call of its own.
    if (!forwarder_->trouble().empty()) greeted_ = false;
    if (loaded) looked = Look();
    if (stopping()) return;
    if (!looked.ok()) {
      greeted_ = false;
      Say(looked.message());
      Pause(backoff);
      backoff = std::min(backoff * 2, kLongestPause);
      continue;
    }
    backoff = kShortestPause;
    const std::string trouble = forwarder_->trouble();
    Say(trouble.empty() ? no_room_ : trouble);
    {
      const std::lock_guard lock(mutex_);
      looked_at_ = seen;
      looked_ = true;
    }
    const auto took =
        std::chrono::duration_cast<milliseconds>(Clock::now() - start);
    hub_.Wait(seen, kIdle);
    Pause(std::clamp(took * 10, kShortestPause, kLongestPause));
  }
}

// ---- On the forwarder's thread ----

void Uplink::Finished(int64_t key) {
  {
    const std::lock_guard lock(mutex_);
    for (auto& [session_id, session] : sessions_) {
      if (session.key == key) session.finished = true;
    }
  }
  hub_.Wake();
}

// The centre has more chunks of this epoch than this store, which was put back
// to an earlier state; it goes on when it has as many.
void Uplink::EpochTaken(int64_t key) {
  const std::lock_guard lock(mutex_);
  for (auto& [session_id, session] : sessions_) {
    if (session.key != key || std::exchange(session.ahead, true)) continue;
    LogWarning("forward_failed",
               StrCat("session ", session_id, ": the centre has more of it ",
                      "than this store; what comes here is forwarded when ",
                      "there is as much of it"));
  }
}

void Uplink::Asked(int64_t key, const v1::Down& down) {
  std::string run_id;
  std::string asked;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [session_id, session] : sessions_) {
      if (session.key != key) continue;
      run_id = session.run_id;
      asked = session_id;
    }
  }
  if (!asked.empty()) relay_(run_id, asked, down);
}

}  // namespace reprise::server
