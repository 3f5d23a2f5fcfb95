// SPDX-License-Identifier: Apache-2.0
#include "server/collect/forwarder.h"

#include <pthread.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "base/str_cat.h"

namespace reprise::server {

namespace {

using std::chrono::milliseconds;

constexpr uint32_t kProtoVersion = 1;
constexpr uint64_t kDefaultInflight = 64;
constexpr milliseconds kIdleWake{1000};
constexpr milliseconds kFirstStreamPause{100};
constexpr milliseconds kLongestStreamPause{5000};
// After this long without a Welcome, the trouble is reported.
constexpr milliseconds kSilence{2000};

}  // namespace

Forwarder::Forwarder(std::shared_ptr<grpc::Channel> channel,
                     std::unique_ptr<ChunkSource> source, std::string server,
                     ForwarderEvents events)
    : stub_(v1::Ingest::NewStub(std::move(channel))),
      source_(std::move(source)),
      server_(std::move(server)),
      events_(std::move(events)),
      thread_([this] { Run(); }) {}

Forwarder::~Forwarder() { Stop(); }

void Forwarder::Stop() {
  if (!thread_.joinable()) return;
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  signal_->Raise();
  thread_.join();
}

// ---- For other threads ----

void Forwarder::SetSession(int64_t key, v1::Hello hello, uint64_t last_seq,
                           uint64_t last_name) {
  hello.set_proto_version(kProtoVersion);
  hello.set_min_version(kProtoVersion);
  Change(key, [&](Entry& entry) {
    // Acknowledgements for another epoch do not count for this one.
    if (entry.hello &&
        entry.hello->producer_epoch() != hello.producer_epoch()) {
      entry.acked = entry.acked_by_server = 0;
    }
    entry.hello = std::make_shared<const v1::Hello>(std::move(hello));
    entry.last_seq = last_seq;
    entry.last_name = last_name;
  });
}

void Forwarder::Committed(int64_t key, uint64_t last_seq, uint64_t last_name) {
  Change(key, [&](Entry& entry) {
    entry.last_seq = last_seq;
    entry.last_name = last_name;
  });
}

void Forwarder::Ended(int64_t key, v1::Bye bye) {
  Change(key, [&](Entry& entry) { entry.bye = std::move(bye); });
}

template <typename Changed>
void Forwarder::Change(int64_t key, Changed changed) {
  {
    const std::lock_guard lock(mutex_);
    changed(entries_[key]);
  }
  signal_->Raise();
}

void Forwarder::SetCaps(int64_t key, v1::Caps caps) {
  {
    const std::lock_guard lock(mutex_);
    const auto entry = entries_.find(key);
    if (entry == entries_.end()) return;  // its end was acknowledged
    entry->second.caps = std::make_shared<const v1::Caps>(std::move(caps));
  }
  signal_->Raise();
}

uint64_t Forwarder::AckedOf(int64_t key) const {
  const std::lock_guard lock(mutex_);
  const auto found = entries_.find(key);
  return found == entries_.end() ? 0 : found->second.acked;
}

bool Forwarder::AllTaken() const {
  const std::lock_guard lock(mutex_);
  return std::all_of(entries_.begin(), entries_.end(), [](const auto& item) {
    return !item.second.bye && item.second.acked >= item.second.last_seq;
  });
}

std::string Forwarder::trouble() const {
  const std::lock_guard lock(mutex_);
  return trouble_;
}

Forwarder::Counts Forwarder::counts() const {
  const std::lock_guard lock(mutex_);
  return counts_;
}

bool Forwarder::stopping() const {
  const std::lock_guard lock(mutex_);
  return stop_;
}

void Forwarder::SetTrouble(std::string text) {
  const std::lock_guard lock(mutex_);
  trouble_ = std::move(text);
}

// ---- The thread ----

void Forwarder::Run() {
  pthread_setname_np(pthread_self(), "reprise-forward");
  while (!stopping()) {
    wake_at_ = Clock::now() + kIdleWake;
    std::vector<int64_t> keys;
    {
      const std::lock_guard lock(mutex_);
      for (const auto& [key, entry] : entries_) keys.push_back(key);
    }
    for (const int64_t key : keys) {
      if (!Step(key, links_[key])) continue;
      links_.erase(key);
      // Notify first, so that AllTaken means that everyone has been notified.
      events_.finished(key);
      const std::lock_guard lock(mutex_);
      entries_.erase(key);
    }
    signal_->WaitUntil(wake_at_);
  }
  for (auto& [key, link] : links_) {
    if (link.stream) link.stream->Cancel();
  }
  for (auto& [key, link] : links_) {
    grpc::Status status;
    v1::Down ignored;
    while (link.stream && !link.stream->Over(status)) {
      if (link.stream->TakeAnswer(ignored)) continue;
      signal_->WaitUntil(Clock::now() + kFirstStreamPause);
    }
  }
}

bool Forwarder::Step(int64_t key, Link& link) {
  Entry entry;
  {
    const std::lock_guard lock(mutex_);
    entry = entries_[key];
  }
  const auto now = Clock::now();
  if (!link.stream) {
    if (now < link.retry_at) {
      WakeAt(link.retry_at);
      return false;
    }
    Open(link, *entry.hello);
  }
  for (v1::Down down; link.stream->TakeAnswer(down);) {
    Answer(key, link, down);
  }
  grpc::Status status;
  if (link.stream->Over(status)) return OnOver(link, status);
  if (link.epoch != entry.hello->producer_epoch()) {
    link.stream->Cancel();  // the next stream announces the new epoch
    return false;
  }
  if (!link.welcomed) {
    if (now > link.opened_at + kSilence) {
      SetTrouble(StrCat(server_, ": does not answer; ", source_->waiting()));
    } else {
      WakeAt(link.opened_at + kSilence + milliseconds(1));
    }
    return false;
  }
  if (!link.stream->writable()) return false;
  if (link.bye_sent) {
    link.stream->HalfClose();
    return false;
  }
  {
    const std::lock_guard lock(mutex_);
    entry.acked = entries_[key].acked;  // answers may have raised it
  }
  if (std::optional<v1::Up> message = NextMessage(key, link, entry)) {
    link.stream->Write(std::move(*message));
  }
  return false;
}

void Forwarder::Open(Link& link, const v1::Hello& hello) {
  Link fresh;
  fresh.epoch = hello.producer_epoch();
  fresh.opened_at = Clock::now();
  fresh.highest_sent = link.highest_sent;
  fresh.failures = link.failures;
  fresh.refusals = link.refusals;
  fresh.refusal = std::move(link.refusal);
  link = std::move(fresh);
  v1::Up up;
  *up.mutable_hello() = hello;
  link.stream = IngestStream::Open(*stub_, up, signal_);
}

void Forwarder::Answer(int64_t key, Link& link, const v1::Down& down) {
  switch (down.m_case()) {
    case v1::Down::kWelcome:
      OnWelcome(key, link, down.welcome());
      break;
    case v1::Down::kAck:
      OnAck(key, link, down.ack().committed());
      break;
    case v1::Down::kResend:
      if (link.welcomed && down.resend().expected() >= 1 &&
          down.resend().expected() < link.send_next) {
        link.send_next = down.resend().expected();
      }
      break;
    case v1::Down::kDrain:
      link.stream->HalfClose();
      break;
    case v1::Down::kPlan:
    case v1::Down::kWindow:
      events_.asked(key, down);
      break;
    case v1::Down::M_NOT_SET:
      break;
  }
}

void Forwarder::OnWelcome(int64_t key, Link& link, const v1::Welcome& welcome) {
  const uint64_t resume_after = welcome.resume_after();
  uint64_t last_seq = 0;
  {
    const std::lock_guard lock(mutex_);
    last_seq = entries_[key].last_seq;
    trouble_.clear();
  }
  if (resume_after > last_seq) {
    link.stream->Cancel();
    events_.epoch_taken(key);
    return;
  }
  link.welcomed = true;
  link.send_next = resume_after + 1;
  link.max_inflight =
      welcome.max_inflight() != 0 ? welcome.max_inflight() : kDefaultInflight;
  // If sent alone, a chunk that is refused can be identified.
  if (link.refusals > 1) link.max_inflight = 1;
  link.max_chunk_bytes = welcome.max_chunk_bytes();
  if (resume_after > 0) OnAck(key, link, resume_after);
  if (resume_after == last_seq) link.failures = 0;
}

void Forwarder::OnAck(int64_t key, Link& link, uint64_t committed) {
  if (!link.welcomed || committed >= link.send_next) return;
  {
    const std::lock_guard lock(mutex_);
    Entry& entry = entries_[key];
    entry.acked_by_server = std::max(entry.acked_by_server, committed);
    if (committed <= entry.acked) return;
    counts_.acked += committed - entry.acked;
    entry.acked = committed;
  }
  link.failures = 0;
  link.refusals = 0;
  link.refusal.clear();
  events_.acked(key, committed);
}

bool Forwarder::OnOver(Link& link, const grpc::Status& status) {
  link.stream.reset();
  if (status.error_code() == grpc::StatusCode::INVALID_ARGUMENT &&
      link.welcomed) {
    ++link.refusals;
    link.refusal = status.error_message();
  }
  if (link.bye_sent && (status.ok() || link.refusals >= kMaxRefusals)) {
    return true;
  }
  if (!status.ok() && status.error_code() != grpc::StatusCode::CANCELLED) {
    SetTrouble(StrCat(server_, ": ", status.error_message(), "; ",
                      source_->waiting()));
  }
  const auto longest = std::min<milliseconds>(
      kLongestStreamPause,
      kFirstStreamPause * (1 << std::min(link.failures, 6)));
  ++link.failures;
  // Half to all of the pause, so that collectors do not return simultaneously.
  std::uniform_int_distribution<int64_t> pause(longest.count() / 2,
                                               longest.count());
  link.retry_at = Clock::now() + milliseconds(pause(jitter_));
  WakeAt(link.retry_at);
  return false;
}

}  // namespace reprise::server
