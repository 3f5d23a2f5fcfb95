// SPDX-License-Identifier: Apache-2.0
#include "server/net/address.h"

#include <arpa/inet.h>
#include <strings.h>

#include <charconv>

#include "base/str_cat.h"

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

}  // namespace reprise::server
