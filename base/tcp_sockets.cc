// SPDX-License-Identifier: Apache-2.0
#include "base/tcp_sockets.h"

#include <arpa/inet.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdio>
#include <fstream>
#include <optional>
#include <sstream>

#include "base/str_cat.h"

namespace reprise {

namespace {

constexpr std::string_view kAnyV4 = "00000000";
constexpr std::string_view kAnyV6 = "00000000000000000000000000000000";
// ::ffff:0:0/96, for IPv4 addresses of IPv6 sockets.
constexpr std::string_view kMapped = "0000000000000000FFFF0000";

// How closely a socket listens at an address: the kernel gives a connection to
// the closest one, so others there receive nothing.
enum class Fit { kNone, kAnyAddress, kThisAddress };

// Returns how closely a socket that listens at `local` fits `wanted`; both as in
// the tables.
Fit FitOf(const std::string& local, const std::string& wanted) {
  const size_t colon = local.rfind(':');
  const size_t port = wanted.rfind(':');
  if (wanted.empty() || colon == std::string::npos ||
      std::string_view(local).substr(colon) !=
          std::string_view(wanted).substr(port)) {
    return Fit::kNone;
  }
  if (local == wanted || local == StrCat(kMapped, wanted)) {
    return Fit::kThisAddress;
  }
  const std::string_view host = std::string_view(local).substr(0, colon);
  return host == kAnyV4 || host == kAnyV6 ? Fit::kAnyAddress : Fit::kNone;
}

// The users whose sockets a connection to `wanted` may reach.
struct Listeners {
  Fit fit = Fit::kNone;
  std::vector<uint32_t> uids;

  void Add(const TcpSocket& socket, const std::string& wanted) {
    const Fit its = FitOf(socket.local, wanted);
    if (its == Fit::kNone || its < fit) return;
    if (its > fit) uids.clear();
    fit = its;
    uids.push_back(socket.uid);
  }
};

}  // namespace

std::string AsInTcpTable(std::string_view address) {
  const size_t colon = address.rfind(':');
  if (colon == std::string_view::npos || colon == 0) return "";
  uint16_t port = 0;
  const char* end = address.data() + address.size();
  const auto [last, error] = std::from_chars(&address[colon] + 1, end, port);
  if (error != std::errc() || last != end) return "";
  const bool brackets = address.front() == '[' && address[colon - 1] == ']';
  const std::string host(brackets ? address.substr(1, colon - 2)
                                  : address.substr(0, colon));
  const size_t count = brackets ? 4 : 1;
  std::array<uint32_t, 4> words{};
  if (inet_pton(brackets ? AF_INET6 : AF_INET, host.c_str(), words.data()) !=
      1) {
    return "";
  }
  std::string text;
  char part[12];
  for (size_t i = 0; i < count; ++i) {
    // The kernel prints each word of the address as a number of this machine.
    std::snprintf(part, sizeof(part), "%08X", words[i]);
    text += part;
  }
  std::snprintf(part, sizeof(part), ":%04X", port);
  return text + part;
}

bool EachTcpSocket(bool v6, const std::function<bool(const TcpSocket&)>& take) {
  std::ifstream table(v6 ? "/proc/net/tcp6" : "/proc/net/tcp");
  std::string line;
  if (!std::getline(table, line)) return false;  // the heading
  while (std::getline(table, line)) {
    // sl local_address rem_address st queues timer retransmissions uid
    std::istringstream fields(line);
    std::string number, state, queues, timer, again;
    TcpSocket found;
    if (!(fields >> number >> found.local >> found.remote >> state >> queues >>
          timer >> again >> found.uid)) {
      continue;
    }
    found.is_connected = state == "01";
    found.listens = state == "0A";
    if (!take(found)) break;
  }
  return true;
}

Status CheckListener(const std::string& target,
                     std::span<const uint32_t> trusted) {
  constexpr std::string_view kName = "localhost:";
  std::vector<std::string> wanted;
  if (target.starts_with(kName)) {
    const std::string port = target.substr(kName.size() - 1);
    wanted = {AsInTcpTable("127.0.0.1" + port), AsInTcpTable("[::1]" + port)};
  } else {
    wanted = {AsInTcpTable(target)};
  }
  std::vector<Listeners> found(wanted.size());
  bool readable = false;
  for (const bool v6 : {false, true}) {
    readable |= EachTcpSocket(v6, [&](const TcpSocket& socket) {
      for (size_t i = 0; socket.listens && i < wanted.size(); ++i) {
        found[i].Add(socket, wanted[i]);
      }
      return true;
    });
  }
  bool any = false;
  std::optional<uint32_t> stranger;
  for (const Listeners& one : found) {
    for (const uint32_t uid : one.uids) {
      any = true;
      const bool known =
          std::find(trusted.begin(), trusted.end(), uid) != trusted.end();
      if (!known) stranger = uid;
    }
  }
  if (stranger) {
    return PermissionDenied(
        StrCat(target, ": user ", *stranger,
               " listens there, who is neither you nor the owner of its token: "
               "the token is not sent"));
  }
  if (!readable) {
    return PermissionDenied(
        StrCat(target,
               ": /proc/net/tcp does not say who listens there: the "
               "token is not sent; use TLS, or a server's own machine"));
  }
  if (any) return OkStatus();
  return Unavailable(StrCat("nobody listens at ", target));
}

}  // namespace reprise
