// SPDX-License-Identifier: Apache-2.0
#include "server/net/peer.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <cstring>

#include "base/str_cat.h"
#include "base/tcp_sockets.h"

namespace reprise::server {

namespace {

constexpr std::string_view kUnix = "unix-abstract:";
constexpr std::string_view kInside = "inproc";
// ::ffff:0:0/96 in /proc/net/tcp6.
constexpr std::string_view kMapped = "0000000000000000FFFF0000";

// gRPC writes the brackets of an IPv6 address as %5B and %5D.
std::string WithBrackets(std::string text) {
  for (const auto& [escape, bracket] :
       {std::pair{"%5B", "["}, std::pair{"%5D", "]"}}) {
    if (const size_t at = text.find(escape); at != std::string::npos) {
      text.replace(at, 3, bracket);
    }
  }
  return text;
}

// Returns the user of the connected socket that has the local address `wanted`
// in a table of the kernel, and one of `ports` at its other end.
std::optional<uint32_t> OwnerIn(bool v6, std::string_view wanted,
                                const std::vector<uint16_t>& ports) {
  std::optional<uint32_t> found;
  EachTcpSocket(v6, [&](const TcpSocket& socket) {
    if (socket.local != wanted || !socket.is_connected) return true;
    const size_t colon = socket.remote.rfind(':');
    uint16_t port = 0;
    std::from_chars(socket.remote.data() + colon + 1,
                    socket.remote.data() + socket.remote.size(), port, 16);
    if (std::find(ports.begin(), ports.end(), port) == ports.end()) return true;
    found = socket.uid;
    return false;
  });
  return found;
}

}  // namespace

std::string PeerOf(int fd) {
  sockaddr_storage storage{};
  socklen_t size = sizeof(storage);
  if (::getpeername(fd, reinterpret_cast<sockaddr*>(&storage), &size) != 0) {
    return "";
  }
  char text[INET6_ADDRSTRLEN];
  if (storage.ss_family == AF_INET) {
    const auto& address = reinterpret_cast<const sockaddr_in&>(storage);
    inet_ntop(AF_INET, &address.sin_addr, text, sizeof(text));
    return StrCat("ipv4:", text, ":", ntohs(address.sin_port));
  }
  if (storage.ss_family == AF_INET6) {
    const auto& address = reinterpret_cast<const sockaddr_in6&>(storage);
    inet_ntop(AF_INET6, &address.sin6_addr, text, sizeof(text));
    return StrCat("ipv6:[", text, "]:", ntohs(address.sin6_port));
  }
  constexpr size_t kPath = offsetof(sockaddr_un, sun_path);
  if (storage.ss_family == AF_UNIX && size > kPath + 1) {
    const auto& address = reinterpret_cast<const sockaddr_un&>(storage);
    if (address.sun_path[0] != '\0') return "";
    return StrCat(kUnix,
                  std::string_view(&address.sun_path[1], size - kPath - 1));
  }
  return "";
}

std::optional<uint32_t> OwnerOf(const std::string& address,
                                const std::vector<uint16_t>& ports) {
  // gRPC may call the scheme otherwise.
  const std::string wanted =
      AsInTcpTable(std::string_view(address).substr(address.find(':') + 1));
  if (wanted.empty()) return std::nullopt;
  const bool v6 = address.find('[') != std::string::npos;
  if (v6) return OwnerIn(true, wanted, ports);
  const auto uid = OwnerIn(false, wanted, ports);
  // gRPC reaches IPv4 addresses from IPv6 sockets, as ::ffff:127.0.0.1.
  return uid ? uid : OwnerIn(true, StrCat(kMapped, wanted), ports);
}

IdentifyCaller MakeIdentify(
    std::vector<uint16_t> ports,
    std::function<std::optional<Caller>(const std::string& name)> over_tls) {
  return [ports = std::move(ports),
          over_tls = std::move(over_tls)](const std::string& given) -> Caller {
    const std::string peer = WithBrackets(given);
    if (peer.starts_with(kInside)) {
      // "inproc:uid 1000, pid 4242"
      if (peer.size() <= kInside.size() + 1)
        return {.who = "server", .peer = ""};
      const std::string job = peer.substr(kInside.size() + 1);
      const size_t comma = job.find(", ");
      if (comma == std::string::npos) return {.who = job, .peer = ""};
      return {.who = job.substr(0, comma),
              .peer = StrCat("agent socket, ", job.substr(comma + 2))};
    }
    if (peer.starts_with(kUnix)) {
      if (auto caller = over_tls(peer.substr(kUnix.size()))) {
        return *std::move(caller);
      }
      return {.who = "token", .peer = "over TLS"};
    }
    const size_t colon = peer.find(':');
    const std::string address =
        colon == std::string::npos ? peer : peer.substr(colon + 1);
    const std::optional<uint32_t> uid = OwnerOf(peer, ports);
    return {.who = uid ? StrCat("uid ", *uid) : std::string("token"),
            .peer = address};
  };
}

}  // namespace reprise::server
