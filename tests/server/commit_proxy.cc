// SPDX-License-Identifier: Apache-2.0
#include "tests/server/commit_proxy.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <string_view>

namespace reprise::server {

namespace {

constexpr int kTurnMs = 50;

sockaddr_un AddressOf(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  path.copy(address.sun_path, sizeof(address.sun_path) - 1);
  return address;
}

// Passes on what is there; returns false when that end has closed.
bool Pass(int from, int to, std::string& seen) {
  char bytes[65536];
  const ssize_t n = ::recv(from, bytes, sizeof(bytes), 0);
  if (n <= 0) return false;
  seen.assign(bytes, static_cast<size_t>(n));
  return to < 0 || ::send(to, bytes, static_cast<size_t>(n), MSG_NOSIGNAL) == n;
}

}  // namespace

CommitProxy::CommitProxy(std::string server) : server_(std::move(server)) {
  listening_ = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const sockaddr_un address = AddressOf(folder() + "/.s.PGSQL.5432");
  if (::bind(listening_, reinterpret_cast<const sockaddr*>(&address),
             sizeof(address)) != 0 ||
      ::listen(listening_, 16) != 0) {
    std::abort();
  }
  acceptor_ = std::thread([this] { Accept(); });
}

CommitProxy::~CommitProxy() {
  stop_ = true;
  acceptor_.join();
  for (std::thread& thread : threads_) thread.join();
  ::close(listening_);
}

void CommitProxy::Accept() {
  while (!stop_) {
    pollfd ready{.fd = listening_, .events = POLLIN, .revents = 0};
    if (::poll(&ready, 1, kTurnMs) <= 0) continue;
    const int client = ::accept4(listening_, nullptr, nullptr, SOCK_CLOEXEC);
    if (client >= 0) threads_.emplace_back([this, client] { Serve(client); });
  }
}

void CommitProxy::Serve(int client) {
  const int server = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const sockaddr_un address = AddressOf(server_);
  bool open = ::connect(server, reinterpret_cast<const sockaddr*>(&address),
                        sizeof(address)) == 0;
  std::string seen;
  while (open && !stop_) {
    pollfd ready[2] = {{.fd = client, .events = POLLIN, .revents = 0},
                       {.fd = server, .events = POLLIN, .revents = 0}};
    if (::poll(ready, 2, kTurnMs) <= 0) continue;
    if (ready[1].revents != 0) open = Pass(server, client, seen);
    if (!open || ready[0].revents == 0) continue;
    char bytes[65536];
    const ssize_t n = ::recv(client, bytes, sizeof(bytes), MSG_PEEK);
    // As libpq sends it: the whole text of a simple query.
    const bool commits =
        n > 0 && std::string_view(bytes, static_cast<size_t>(n))
                         .find(std::string_view("COMMIT\0", 7)) !=
                     std::string_view::npos;
    const Cut cut = commits ? cut_.exchange(Cut::kNone) : Cut::kNone;
    if (cut == Cut::kNone) {
      open = Pass(client, server, seen);
      continue;
    }
    ++cuts_;
    open = false;
    if (cut == Cut::kAnswer) {
      (void)Pass(client, server, seen);
      (void)Pass(server, -1, seen);  // the answer: it goes no further
    }
  }
  ::close(server);
  ::close(client);
}

}  // namespace reprise::server
