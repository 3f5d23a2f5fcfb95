// SPDX-License-Identifier: Apache-2.0
//
// The drain loop's connections: which agents are accepted, and when one is
// gone.
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "base/str_cat.h"
#include "server/collect/drain_loop.h"
#include "server/collect/process.h"

namespace reprise::server {

namespace {

using std::chrono::milliseconds;

constexpr int kMaxConnected = 256;
// Includes ended sessions that the server has not acknowledged.
constexpr size_t kMaxSessions = 4096;
constexpr size_t kMaxNewcomers = 64;
constexpr milliseconds kHelloWait{2000};
constexpr int kMessagesPerTurn = 256;
constexpr milliseconds kCheckEvery{250};
constexpr milliseconds kCheckSoon{10};
constexpr milliseconds kJustLeft{1000};
// A session whose process cannot be seen ends this long after its socket
// closed.
constexpr milliseconds kUnseenWait{10000};

}  // namespace

void DrainLoop::Watch(const Fd& socket) {
  epoll_event event{};
  event.events = EPOLLIN;
  epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, socket.get(), &event);
}

// While all places of newcomers are taken, a waiting connection would make every
// epoll_wait() return at once.
void DrainLoop::WatchListener() {
  const bool room = newcomers_.size() < kMaxNewcomers;
  if (!listener_.valid() || room == listening_) return;
  epoll_event event{};
  event.events = room ? EPOLLIN : 0U;
  epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, listener_.get(), &event);
  listening_ = room;
}

void DrainLoop::Refuse(const Fd& socket, const std::string& why) {
  if (socket.valid()) (void)Send(socket, REPRISE_MSG_REFUSED, 0, why);
}

void DrainLoop::Accept() {
  while (newcomers_.size() < kMaxNewcomers) {
    Fd socket(accept4(listener_.get(), nullptr, nullptr,
                      SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!socket.valid()) return;
    auto peer = PeerOf(socket);
    if (!peer.ok()) continue;
    if (peer->uid != geteuid() && peer->uid != 0) {
      ++refused_;
      Refuse(socket,
             StrCat("uid ", peer->uid, " may not use the collector of uid ",
                    geteuid(), "; start one of your own"));
      continue;
    }
    Watch(socket);
    newcomers_.push_back({std::move(socket), *peer, Clock::now()});
  }
}

void DrainLoop::ReadNewcomers() {
  for (size_t i = 0; i < newcomers_.size();) {
    Newcomer& newcomer = newcomers_[i];
    Message message;
    auto received = Receive(newcomer.socket, message);
    if (received.ok() && *received == Received::kNothing &&
        Clock::now() - newcomer.since < kHelloWait) {
      ++i;
      continue;
    }
    Status status = received.status();
    if (status.ok() && *received == Received::kMessage) {
      status = Welcome(newcomer, message);
    }
    if (!status.ok()) {
      ++refused_;
      // A refusal is final for an agent, so a temporary error only closes the
      // socket.
      if (status.code() != Code::kUnavailable) {
        Refuse(newcomer.socket, status.message());
      }
    }
    newcomers_.erase(newcomers_.begin() + static_cast<ptrdiff_t>(i));
  }
}

AgentSession* DrainLoop::FindSession(const std::string& session_id) {
  for (const auto& [key, session] : sessions_) {
    if (session->row().session_id == session_id) return session.get();
  }
  return nullptr;
}

Status DrainLoop::Welcome(Newcomer& newcomer, Message& message) {
  ASSIGN_OR_RETURN(AgentHello hello, ParseHello(message, newcomer.peer));
  ASSIGN_OR_RETURN(MappedRing mapped,
                   MapRing(message.fds.front(), hello.slots));
  AgentSession* session = FindSession(hello.session_id);
  std::optional<RingReader> ring;
  if (session == nullptr) {
    if (connected_ >= kMaxConnected || sessions_.size() >= kMaxSessions) {
      return Unavailable(StrCat("there are ", connected_.load(), " agents and ",
                                sessions_.size(), " sessions already"));
    }
    ASSIGN_OR_RETURN(
        ring, RingReader::Attach(std::move(mapped), hello.slots, std::nullopt));
    SpooledSession row;
    row.key = ++last_key_;
    row.session_id = hello.session_id;
    row.run_id = hello.run_id;
    row.ring_position = ring->position();
    // A ring that was read before belongs to a spool that no longer exists. The
    // server may know its seqs, so they must not be reused.
    row.epoch = row.ring_position == 0 ? 1 : UnixMilliseconds();
    row.info = hello.info.SerializeAsString();
    row.realtime_to_monotonic_ns = hello.realtime_to_monotonic_ns;
    auto owned = std::make_unique<AgentSession>(std::move(row),
                                                std::vector<SpooledName>());
    session = owned.get();
    sessions_.emplace(session->row().key, std::move(owned));
    forwarder_->SetSession(session->row().key, session->Hello(), 0, 0);
  } else {
    const AgentSnapshot known = session->Snapshot();
    if (session->ended() || session->ending()) {
      return FailedPrecondition(
          StrCat("session ", hello.session_id, ": has ended; start a new one"));
    }
    if (session->info().uid() != newcomer.peer.uid ||
        known.run_id != hello.run_id) {
      return PermissionDenied(
          StrCat("session ", hello.session_id, ": belongs to another job"));
    }
    if (!session->ring()) {
      ASSIGN_OR_RETURN(ring, RingReader::Attach(std::move(mapped), hello.slots,
                                                session->row().ring_position));
    } else if (session->ring()->identity() != mapped.identity) {
      return FailedPrecondition(StrCat("session ", hello.session_id,
                                       ": came back with another ring; start "
                                       "a new session"));
    }
  }
  if (session->connected()) --connected_;
  session->Connect(std::move(newcomer.socket), std::move(ring), newcomer.peer,
                   StartTicksOf(newcomer.peer.pid));
  ++connected_;
  published_at_ = {};
  reprise_msg_welcome welcome{};
  welcome.ring_layout = REPRISE_RING_LAYOUT;
  options_.version.copy(welcome.version, sizeof(welcome.version) - 1);
  const Status sent =
      Send(session->socket(), REPRISE_MSG_WELCOME, message.request,
           {reinterpret_cast<const char*>(&welcome), sizeof(welcome)});
  if (!sent.ok()) CloseSocket(*session);
  return OkStatus();
}

void DrainLoop::ReadSockets() {
  socket_backlog_ = false;
  for (const auto& [key, session] : sessions_) {
    session->MarkHead();
    if (session->connected()) ReadSocket(*session);
  }
}

void DrainLoop::ReadSocket(AgentSession& session) {
  const auto now = Clock::now();
  for (int i = 0; i < kMessagesPerTurn; ++i) {
    if (session.ending()) return;  // closed once its ring is stored
    Message message;
    auto received = Receive(session.socket(), message);
    Status status = received.status();
    if (status.ok() && *received == Received::kNothing) return;
    if (status.ok() && *received == Received::kClosed) {
      return CloseSocket(session);
    }
    if (status.ok()) status = session.Handle(std::move(message), now);
    if (auto caps = session.TakeNewCapabilities()) {
      forwarder_->SetCaps(session.row().key, *std::move(caps));
    }
    if (!status.ok()) {
      ++refused_;
      Refuse(session.socket(), status.message());
      return CloseSocket(session);
    }
  }
  socket_backlog_ = true;
}

void DrainLoop::CloseSocket(AgentSession& session) {
  if (session.connected()) --connected_;
  session.Disconnect(Clock::now());
  checked_at_ = {};
  published_at_ = {};
}

void DrainLoop::FlushSockets() {
  for (const auto& [key, session] : sessions_) {
    if (session->Flush().ok()) continue;
    ++refused_;
    CloseSocket(*session);
  }
}

// Ends sessions whose process is gone. An open socket does not prove that it
// lives, because a cloned child may hold it; nor does a closed one prove that
// it is gone, because the agent may be about to reconnect.
void DrainLoop::CheckProcesses() {
  const auto now = Clock::now();
  const bool some_just_left =
      std::any_of(sessions_.begin(), sessions_.end(), [now](const auto& item) {
        const AgentSession& session = *item.second;
        return !session.connected() && !session.ending() && !session.ended() &&
               now - session.disconnected_at() < kJustLeft;
      });
  if (now - checked_at_ < (some_just_left ? kCheckSoon : kCheckEvery)) return;
  checked_at_ = now;
  for (const auto& [key, session] : sessions_) {
    if (session->ended() || session->ending()) continue;
    const SpooledSession& row = session->row();
    bool gone = false;
    const bool other_boot = !boot_id_.empty() &&
                            !session->info().boot_id().empty() &&
                            session->info().boot_id() != boot_id_;
    if (other_boot) {
      gone = !session->connected();
    } else if (row.peer_pid != 0) {
      const Life life = LifeOf(row.peer_pid, row.peer_ticks);
      gone = life == Life::kGone ||
             (life == Life::kZombie && !session->connected());
    } else {
      gone = !session->connected() &&
             now - session->disconnected_at() > kUnseenWait;
    }
    if (!gone) continue;
    // What the process sent before it died is still queued.
    session->MarkHead();
    if (session->connected()) ReadSocket(*session);
    if (session->connected() && !socket_backlog_) CloseSocket(*session);
    if (!session->connected() && !session->ending()) session->WriterGone();
  }
}

}  // namespace reprise::server
