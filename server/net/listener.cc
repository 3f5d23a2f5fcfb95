// SPDX-License-Identifier: Apache-2.0
#include "server/net/listener.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <deque>
#include <vector>

#include "base/str_cat.h"
#include "server/core/log.h"
#include "server/net/address.h"

namespace reprise::server {

namespace {

using Clock = std::chrono::steady_clock;

constexpr int kPrefaceBytes = 4;
constexpr char kGrpcPreface[] = "PRI ";
constexpr auto kSilence = std::chrono::seconds(10);
constexpr size_t kMaxSilent = 512;

// A connection whose first bytes have not arrived.
struct Silent {
  int fd = -1;
  Clock::time_point since;
};

void SetOption(int fd, int level, int name, int value) {
  (void)::setsockopt(fd, level, name, &value, sizeof(value));
}

socklen_t Fill(const Address& address, sockaddr_storage& storage) {
  if (address.v6) {
    auto* v6 = reinterpret_cast<sockaddr_in6*>(&storage);
    v6->sin6_family = AF_INET6;
    v6->sin6_port = htons(address.port);
    inet_pton(AF_INET6, address.host.c_str(), &v6->sin6_addr);
    return sizeof(*v6);
  }
  auto* v4 = reinterpret_cast<sockaddr_in*>(&storage);
  v4->sin_family = AF_INET;
  v4->sin_port = htons(address.port);
  inet_pton(AF_INET, address.host.c_str(), &v4->sin_addr);
  return sizeof(*v4);
}

uint16_t BoundPort(int fd) {
  sockaddr_storage storage{};
  socklen_t size = sizeof(storage);
  if (::getsockname(fd, reinterpret_cast<sockaddr*>(&storage), &size) != 0) {
    return 0;
  }
  return ntohs(storage.ss_family == AF_INET6
                   ? reinterpret_cast<sockaddr_in6*>(&storage)->sin6_port
                   : reinterpret_cast<sockaddr_in*>(&storage)->sin_port);
}

enum class Kind { kUnknown, kGrpc, kHttp, kGone };

Kind Look(int fd) {
  char bytes[kPrefaceBytes];
  const ssize_t n = ::recv(fd, bytes, sizeof(bytes), MSG_PEEK | MSG_DONTWAIT);
  if (n < 0) {
    return errno == EAGAIN || errno == EINTR ? Kind::kUnknown : Kind::kGone;
  }
  // Fewer bytes than requested: the client has already closed its side.
  if (n < kPrefaceBytes) return Kind::kGone;
  return std::memcmp(bytes, kGrpcPreface, kPrefaceBytes) == 0 ? Kind::kGrpc
                                                              : Kind::kHttp;
}

}  // namespace

StatusOr<std::unique_ptr<Listener>> Listener::Bind(const Address& address,
                                                   Serves serves) {
  const int fd = ::socket(address.v6 ? AF_INET6 : AF_INET,
                          SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0) {
    return Internal(StrCat(address.Text(),
                           ": cannot make a socket: ", std::strerror(errno)));
  }
  // Allows a restart to reuse the port at once, but not a second server to
  // share it.
  SetOption(fd, SOL_SOCKET, SO_REUSEADDR, 1);
  sockaddr_storage storage{};
  const socklen_t size = Fill(address, storage);
  if (::bind(fd, reinterpret_cast<sockaddr*>(&storage), size) != 0 ||
      ::listen(fd, SOMAXCONN) != 0) {
    const int error = errno;
    ::close(fd);
    if (error == EADDRINUSE) {
      return AlreadyExists(StrCat(address.Text(),
                                  ": the port is in use; stop the other server "
                                  "or choose another port with --listen"));
    }
    return PermissionDenied(StrCat(address.Text(),
                                   ": cannot listen: ", std::strerror(error),
                                   "; choose another address with --listen"));
  }
  Address bound = address;
  bound.port = BoundPort(fd);
  const int wake = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (wake < 0) {
    ::close(fd);
    return Internal(StrCat("eventfd: ", std::strerror(errno)));
  }
  return std::unique_ptr<Listener>(
      new Listener(std::move(bound), serves, fd, wake));
}

Listener::~Listener() {
  Stop();
  ::close(listen_fd_);
  ::close(wake_fd_);
}

void Listener::Start(AdoptSocket to_grpc, AdoptSocket to_http) {
  to_grpc_ = std::move(to_grpc);
  to_http_ = std::move(to_http);
  thread_ = std::thread([this] { Loop(); });
}

void Listener::Stop() {
  stopping_ = true;
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t n = ::write(wake_fd_, &one, sizeof(one));
  if (thread_.joinable()) thread_.join();
}

bool Listener::HasRoom(int fd) {
  // The kernel gives the lowest descriptor that is free, so its number says how
  // many are in use.
  rlimit most{};
  if (::getrlimit(RLIMIT_NOFILE, &most) != 0) return true;
  const auto in_use = static_cast<rlim_t>(fd);
  if (in_use < most.rlim_cur / 2) return true;
  if (in_use < most.rlim_cur / 4 * 3) {
    const auto uid = OwnerOf(PeerOf(fd), {address_.port});
    if (uid && (*uid == ::geteuid() || *uid == 0)) return true;
  }
  if (const auto now = Clock::now(); now - warned_ > std::chrono::minutes(1)) {
    warned_ = now;
    LogWarning("connections_refused",
               StrCat("half of the ", most.rlim_cur,
                      " descriptors are in use: connections of other users "
                      "are refused, and of everybody above three quarters"));
  }
  return false;
}

bool Listener::HandOn(int fd, bool last_chance) const {
  const Kind kind = Look(fd);
  if (kind == Kind::kUnknown && !last_chance) return false;
  if (kind == Kind::kUnknown || kind == Kind::kGone) {
    ::close(fd);
    return true;
  }
  SetOption(fd, SOL_SOCKET, SO_RCVLOWAT, 1);
  (kind == Kind::kGrpc ? to_grpc_ : to_http_)(fd);
  return true;
}

void Listener::Loop() {
  std::deque<Silent> silent;  // oldest first
  std::vector<pollfd> polled;
  while (!stopping_) {
    polled.clear();
    polled.push_back({wake_fd_, POLLIN, 0});
    polled.push_back({listen_fd_, POLLIN, 0});
    for (const Silent& client : silent) {
      polled.push_back({client.fd, POLLIN, 0});
    }
    if (::poll(polled.data(), polled.size(), silent.empty() ? -1 : 1000) < 0 &&
        errno != EINTR) {
      LogError("poll_failed", StrCat("poll: ", std::strerror(errno)));
    }
    if (stopping_) break;

    const Clock::time_point now = Clock::now();
    std::erase_if(silent, [&](const Silent& client) {
      return HandOn(client.fd, /*last_chance=*/now - client.since >= kSilence);
    });

    while ((polled[1].revents & POLLIN) != 0) {
      const int fd =
          ::accept4(listen_fd_, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
      if (fd < 0) {
        if (errno == EMFILE || errno == ENFILE) {
          LogWarning("no_descriptors",
                     "out of file descriptors; new connections wait");
          std::this_thread::sleep_for(std::chrono::milliseconds(100));
        }
        break;
      }
      if (!HasRoom(fd)) {
        ::close(fd);
        continue;
      }
      SetOption(fd, IPPROTO_TCP, TCP_NODELAY, 1);
      if (serves_ == Serves::kGrpc) {
        to_grpc_(fd);
      } else if (serves_ == Serves::kHttp) {
        to_http_(fd);
      } else {
        // poll() then reports the socket once all four bytes are there.
        SetOption(fd, SOL_SOCKET, SO_RCVLOWAT, kPrefaceBytes);
        if (HandOn(fd, /*last_chance=*/false)) continue;
        silent.push_back({fd, now});
        if (silent.size() <= kMaxSilent) continue;
        // Its bytes may have arrived meanwhile.
        (void)HandOn(silent.front().fd, /*last_chance=*/true);
        silent.pop_front();
      }
    }
  }
  for (const Silent& client : silent) ::close(client.fd);
}

}  // namespace reprise::server
