// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <charconv>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/str_cat.h"
#include "base/tcp_sockets.h"
#include "clients/cli/core/files.h"
#include "clients/cli/server/runtime_paths.h"
#include "clients/cli/server/server_client.h"
#include "profiler/include/reprise_sockets.h"

namespace reprise::cli {
namespace {

bool IsLoopback(const std::string& host) {
  return host == "localhost" || host == "[::1]" || host.rfind("127.", 0) == 0;
}

// What a server writes next to its socket.
struct Announced {
  std::string listen;
  std::string url;
  std::string token_file;
  std::string certificate;  // empty: no TLS
  uint32_t owner = 0;       // who wrote it
};

// Returns who owns the announcement. Where the user has not named its folder,
// as in a shared /tmp, somebody else may have made it: PERMISSION_DENIED.
StatusOr<uint32_t> OwnerOfAnnouncement(const std::string& path) {
  struct stat file {};
  struct stat folder {};
  const std::string parent = std::filesystem::path(path).parent_path().string();
  if (::lstat(path.c_str(), &file) != 0 ||
      ::stat(parent.c_str(), &folder) != 0 || !S_ISREG(file.st_mode)) {
    return PermissionDenied(StrCat(path, ": is not a file of a server"));
  }
  constexpr mode_t kOthersWrite = S_IWGRP | S_IWOTH;
  const bool is_named = !Environment("REPRISE_SOCKET").empty() ||
                        AgentSocket() == REPRISE_SERVICE_SOCKET;
  if (!is_named) {
    for (const struct stat& one : {file, folder}) {
      if (one.st_uid == ::geteuid() && (one.st_mode & kOthersWrite) == 0) {
        continue;
      }
      return PermissionDenied(
          StrCat(path, ": user ", one.st_uid,
                 " or others can write it, so what it says is not believed; "
                 "remove the folder, or set XDG_RUNTIME_DIR"));
    }
  }
  if (file.st_uid != folder.st_uid && file.st_uid != 0) {
    return PermissionDenied(StrCat(path, ": belongs to user ", file.st_uid,
                                   ", its folder to user ", folder.st_uid,
                                   "; it is not believed"));
  }
  return file.st_uid;
}

StatusOr<Announced> ReadAnnounced(const std::string& path) {
  const StatusOr<std::string> text = ReadFile(path, 1 << 16);
  if (!text.ok()) {
    return Unavailable(StrCat("no server is running here; ", kStartHint,
                              " or name one with --server HOST:PORT"));
  }
  ASSIGN_OR_RETURN(const uint32_t owner, OwnerOfAnnouncement(path));
  const auto json = nlohmann::json::parse(*text, nullptr, false);
  const auto word = [&json](const char* key) {
    return json.contains(key) && json[key].is_string()
               ? json[key].get<std::string>()
               : std::string();
  };
  if (!json.is_object() || word("listen").empty()) {
    return FailedPrecondition(
        StrCat(path, ": was not written by a server; remove it"));
  }
  // Use the token next to this file, not the path the daemon knows: the daemon
  // may be in another container.
  return Announced{
      word("listen"), word("url"),
      (std::filesystem::path(path).parent_path() / "server.token").string(),
      word("certificate"), owner};
}

// Replaces "localhost" by 127.0.0.1: to the daemon they are the same host.
std::string AsNumbers(const std::string& target) {
  constexpr std::string_view kName = "localhost:";
  return target.rfind(kName, 0) == 0
             ? "127.0.0.1:" + target.substr(kName.size())
             : target;
}

// Replaces a wildcard address such as "0.0.0.0:7443", at which a server
// listens, by one at which it can be reached.
std::string ReachedHere(const std::string& target) {
  const std::string port = target.substr(target.rfind(':'));
  if (target.rfind("0.0.0.0:", 0) == 0) return "127.0.0.1" + port;
  return target.rfind("[::]:", 0) == 0 ? "[::1]" + port : target;
}

bool IsSame(const Endpoint& endpoint, const Announced& here) {
  const std::string target = AsNumbers(endpoint.target);
  return target == here.listen || endpoint.url == here.url;
}

StatusOr<std::string> ReadTokenFile(const std::string& path) {
  ASSIGN_OR_RETURN(std::string token, ReadFile(path, 4096));
  while (!token.empty() && (token.back() == '\n' || token.back() == '\r')) {
    token.pop_back();
  }
  for (const char c : token) {
    if (c > ' ' && c < 0x7f) continue;
    return InvalidArgument(StrCat(path, ": must hold a token, on one line"));
  }
  return token;
}

}  // namespace

StatusOr<Endpoint> ParseEndpoint(const std::string& text) {
  constexpr std::string_view kPlain = "http://";
  constexpr std::string_view kTls = "https://";
  const std::string shown = text.substr(0, 80);
  std::string rest = text;
  const bool tls = rest.rfind(kTls, 0) == 0;
  if (tls) rest = rest.substr(kTls.size());
  if (!tls && rest.rfind(kPlain, 0) == 0) rest = rest.substr(kPlain.size());
  while (!rest.empty() && rest.back() == '/') rest.pop_back();
  const size_t colon = rest.rfind(':');
  int port = 0;
  if (colon != std::string::npos) {
    const char* end = rest.data() + rest.size();
    const auto [last, error] =
        std::from_chars(rest.data() + colon + 1, end, port);
    if (error != std::errc() || last != end) port = 0;
  }
  if (colon == 0 || port < 1 || port > 65535) {
    return InvalidArgument(StrCat("server \"", shown,
                                  "\": must be HOST:PORT, such as "
                                  "127.0.0.1:7070, or https://HOST:PORT"));
  }
  if (!tls && !IsLoopback(rest.substr(0, colon))) {
    return InvalidArgument(StrCat(
        "server \"", shown,
        "\": without TLS only this machine can be reached; write https:// "
        "where the server has a certificate, or forward the port with `ssh -L ",
        port, ":localhost:", port, "` and use 127.0.0.1:", port));
  }
  Endpoint endpoint;
  endpoint.target = rest;
  endpoint.url = StrCat(tls ? kTls : kPlain, rest);
  endpoint.tls = tls;
  return endpoint;
}

std::string Endpoint::Page(const std::string& path, bool with_token) const {
  return StrCat(url, path, with_token && !token.empty() ? "?token=" : "",
                with_token ? token : "");
}

bool NamesServer(const Globals& globals) {
  return !globals.server.empty() || !Environment("REPRISE_SERVER").empty();
}

StatusOr<Endpoint> FindServer(const Globals& globals) {
  std::string named = globals.server;
  if (named.empty()) named = Environment("REPRISE_SERVER");
  const std::string path = ServerFile();
  const StatusOr<Announced> here = ReadAnnounced(path);
  if (named.empty() && !here.ok()) return here.status();
  // A server with TLS may listen on any address; on its own machine loopback
  // works.
  const bool announced_tls = named.empty() && !here->certificate.empty();
  StatusOr<Endpoint> endpoint = ParseEndpoint(
      named.empty() ? StrCat(announced_tls ? "https://" : "", here->listen)
                    : named);
  if (!endpoint.ok()) return endpoint;
  const bool is_here = here.ok() && IsSame(*endpoint, *here);
  if (named.empty()) {
    if (!here->url.empty()) endpoint->url = here->url;
    // A wildcard address cannot be connected to.
    endpoint->tls = !here->certificate.empty();
    endpoint->target = ReachedHere(endpoint->target);
    endpoint->pinned = here->certificate;
  }
  const auto choose = [](const std::string& flag, const char* variable,
                         std::string& into) {
    const std::string value = flag.empty() ? Environment(variable) : flag;
    if (!value.empty()) into = value;
  };
  choose(globals.ca, "REPRISE_CA", endpoint->ca);
  choose(globals.certificate, "REPRISE_CERT", endpoint->certificate);
  choose(globals.key, "REPRISE_KEY", endpoint->key);
  std::string token_file = globals.token_file;
  if (token_file.empty()) token_file = Environment("REPRISE_TOKEN_FILE");
  // A server of an earlier release needs no token and writes none.
  if (token_file.empty() && is_here && Exists(here->token_file)) {
    token_file = here->token_file;
  }
  if (token_file.empty()) return endpoint;
  ASSIGN_OR_RETURN(endpoint->token, ReadTokenFile(token_file));
  struct stat file {};
  endpoint->trusted = {0, ::geteuid()};
  if (is_here) endpoint->trusted.push_back(here->owner);
  if (::stat(token_file.c_str(), &file) == 0) {
    endpoint->trusted.push_back(file.st_uid);
  }
  return endpoint;
}

Status Endpoint::CheckReceiver() const {
  if (tls || token.empty()) return OkStatus();
  return CheckListener(target, trusted);
}

}  // namespace reprise::cli
