// SPDX-License-Identifier: Apache-2.0
#include "server/net/address.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <strings.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <algorithm>
#include <charconv>
#include <cstddef>

#include "base/str_cat.h"
#include "base/tcp_sockets.h"

namespace reprise::server {
namespace {

struct HostPort {
  std::string_view host;  // without brackets
  std::string_view port;
  bool brackets = false;
};

// Splits "[::1]:80", "localhost:80" or "localhost". A bare "::1" has no port.
HostPort SplitPort(std::string_view text) {
  if (text.starts_with('[')) {
    const size_t close = text.find(']');
    if (close == std::string_view::npos) return {};
    std::string_view rest = text.substr(close + 1);
    if (!rest.empty() && rest[0] != ':') return {};
    if (!rest.empty()) rest.remove_prefix(1);
    return {text.substr(1, close - 1), rest, true};
  }
  const size_t colon = text.rfind(':');
  if (colon == std::string_view::npos) return {text, {}, false};
  return {text.substr(0, colon), text.substr(colon + 1), false};
}

bool IsV4Loopback(const std::string& host) {
  in_addr address{};
  return inet_pton(AF_INET, host.c_str(), &address) == 1 &&
         (ntohl(address.s_addr) >> 24) == 127;
}

bool IsV6Loopback(const std::string& host) {
  in6_addr address{};
  return inet_pton(AF_INET6, host.c_str(), &address) == 1 &&
         IN6_IS_ADDR_LOOPBACK(&address);
}

bool EqualsIgnoringCase(std::string_view a, std::string_view b) {
  return a.size() == b.size() && strncasecmp(a.data(), b.data(), a.size()) == 0;
}

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

Caller CallerAt(const std::string& peer, const std::vector<uint16_t>& ports,
                const FindClient& over_tls) {
  if (peer.starts_with(kInside)) {
    // "inproc:uid 1000, pid 4242"
    if (peer.size() <= kInside.size() + 1) return {.who = "server", .peer = ""};
    const std::string job = peer.substr(kInside.size() + 1);
    const size_t comma = job.find(", ");
    if (comma == std::string::npos) return {.who = job, .peer = ""};
    return {.who = job.substr(0, comma),
            .peer = StrCat("agent socket, ", job.substr(comma + 2))};
  }
  if (peer.starts_with(kUnix)) {
    return over_tls(peer.substr(kUnix.size()))
        .value_or(Caller{.who = "token", .peer = "over TLS"});
  }
  const std::optional<uint32_t> uid = OwnerOf(peer, ports);
  return {.who = uid ? StrCat("uid ", *uid) : std::string("token"),
          .peer = peer.substr(peer.find(':') + 1)};
}

}  // namespace

std::string Address::Text() const {
  return v6 ? StrCat("[", host, "]:", port) : StrCat(host, ":", port);
}

StatusOr<Address> ParseAddress(std::string_view flag, std::string_view text) {
  const HostPort parts = SplitPort(text);
  unsigned port = 0;
  const char* end = parts.port.data() + parts.port.size();
  const auto parsed = std::from_chars(parts.port.data(), end, port);
  if (parts.host.empty() || parts.port.empty() || parsed.ec != std::errc{} ||
      parsed.ptr != end || port > 65535) {
    return InvalidArgument(StrCat(flag, ": cannot read \"", text,
                                  "\"; write HOST:PORT, such as "
                                  "127.0.0.1:7070, with port 0 for any free "
                                  "one"));
  }
  Address address{.host = std::string(parts.host),
                  .v6 = false,
                  .port = static_cast<uint16_t>(port)};
  if (EqualsIgnoringCase(address.host, "localhost")) {
    address.host = "127.0.0.1";
    return address;
  }
  in6_addr v6{};
  in_addr v4{};
  if (parts.brackets && inet_pton(AF_INET6, address.host.c_str(), &v6) == 1) {
    address.v6 = true;
    return address;
  }
  if (!parts.brackets && inet_pton(AF_INET, address.host.c_str(), &v4) == 1) {
    return address;
  }
  return InvalidArgument(StrCat(flag, ": ", text,
                                " is not an address in numbers; write "
                                "127.0.0.1:7070, [::1]:7070 or, with TLS and a "
                                "token, 0.0.0.0:7443"));
}

bool IsLoopback(const Address& address) {
  return address.v6 ? IsV6Loopback(address.host) : IsV4Loopback(address.host);
}

bool IsLoopbackHost(std::string_view host_header) {
  const HostPort parts = SplitPort(host_header);
  for (const char c : parts.port) {
    if (c < '0' || c > '9') return false;
  }
  const std::string host(parts.host);
  if (parts.brackets) return IsV6Loopback(host);
  return EqualsIgnoringCase(host, "localhost") || IsV4Loopback(host);
}

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

IdentifyCaller MakeIdentify(std::vector<uint16_t> ports, FindClient over_tls) {
  return [ports = std::move(ports), over_tls = std::move(over_tls)](
             const std::string& peer, const Access& access) {
    Caller caller = CallerAt(WithBrackets(peer), ports, over_tls);
    if (!access.name.empty()) caller.who = access.name;
    caller.access = access;
    return caller;
  };
}

}  // namespace reprise::server
