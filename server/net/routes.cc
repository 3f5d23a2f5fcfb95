// SPDX-License-Identifier: Apache-2.0
#include "server/net/routes.h"

#include <algorithm>
#include <array>
#include <optional>
#include <utility>

#include "base/str_cat.h"
#include "server/net/connect.h"
#include "server/net/http.h"
#include "server/service/calls/rules.h"

namespace reprise::server {

namespace {

// Allows only our own scripts and styles, and no framing of the page.
constexpr char kContentSecurityPolicy[] =
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' "
    "data:; font-src 'self'; connect-src 'self'; base-uri 'none'; form-action "
    "'none'; frame-ancestors 'none'";

constexpr std::string_view kNoDashboard =
    "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\">"
    "<title>Reprise</title><p>This reprised was built without the dashboard; "
    "run <code>scripts/build</code>, or <code>npm ci &amp;&amp; npm run "
    "build</code> in <code>web/</code>, and build again.</p></html>\n";

HttpHeaders PageHeaders(std::string_view type, std::string_view caching) {
  return {{"Content-Type", std::string(type)},
          {"Cache-Control", std::string(caching)},
          {"Content-Security-Policy", kContentSecurityPolicy},
          {"X-Content-Type-Options", "nosniff"},
          {"Referrer-Policy", "no-referrer"}};
}

void RespondText(HttpReply& reply, int status, std::string text) {
  reply.Respond(TextResponse(status, std::move(text)));
}

std::string_view ContentType(std::string_view path) {
  constexpr std::array<std::pair<std::string_view, std::string_view>, 12>
      kTypes = {{{".html", "text/html; charset=utf-8"},
                 {".js", "text/javascript; charset=utf-8"},
                 {".css", "text/css; charset=utf-8"},
                 {".json", "application/json"},
                 {".map", "application/json"},
                 {".svg", "image/svg+xml"},
                 {".png", "image/png"},
                 {".ico", "image/x-icon"},
                 {".woff2", "font/woff2"},
                 {".wasm", "application/wasm"},
                 {".webmanifest", "application/manifest+json"},
                 {".txt", "text/plain; charset=utf-8"}}};
  for (const auto& [ending, type] : kTypes) {
    if (path.ends_with(ending)) return type;
  }
  return "application/octet-stream";
}

const WebFile* FindFile(std::span<const WebFile> files, std::string_view path) {
  const auto found =
      std::find_if(files.begin(), files.end(),
                   [&](const WebFile& file) { return file.path == path; });
  return found == files.end() ? nullptr : &*found;
}

// Sends a file; uses its brotli version if the client accepts that and the
// build made one.
void RespondFile(std::span<const WebFile> files, const WebFile& file,
                 std::string_view accept_encoding, HttpReply& reply) {
  // The build puts a hash into the names of all files below assets/.
  const bool hashed = file.path.starts_with("assets/");
  HttpHeaders headers =
      PageHeaders(ContentType(file.path),
                  hashed ? "public, max-age=31536000, immutable" : "no-cache");
  const WebFile* brotli = Accepts(accept_encoding, "br")
                              ? FindFile(files, StrCat(file.path, ".br"))
                              : nullptr;
  if (brotli != nullptr) {
    headers.emplace_back("Content-Encoding", "br");
    headers.emplace_back("Vary", "Accept-Encoding");
  }
  reply.Respond({.status = 200,
                 .headers = std::move(headers),
                 .view = brotli != nullptr ? brotli->bytes : file.bytes});
}

void ServeFile(std::span<const WebFile> files, const HttpRequest& request,
               HttpReply& reply) {
  std::string_view path = request.path;
  const std::string_view accepted = request.Header("accept-encoding");
  path.remove_prefix(1);
  if (const WebFile* file = FindFile(files, path); file != nullptr) {
    RespondFile(files, *file, accepted, reply);
    return;
  }
  const std::string_view last = path.substr(path.rfind('/') + 1);
  if (last.find('.') != std::string_view::npos) {
    RespondText(reply, 404, StrCat("there is no file /", path));
    return;
  }
  if (const WebFile* index = FindFile(files, "index.html"); index != nullptr) {
    RespondFile(files, *index, accepted, reply);
    return;
  }
  reply.Respond({.status = 200,
                 .headers = PageHeaders("text/html; charset=utf-8", "no-cache"),
                 .view = kNoDashboard});
}

bool IsRead(const HttpRequest& request) {
  return request.method == "GET" || request.method == "HEAD";
}

void Serve(const Routes& routes, HttpRequest request,
           std::shared_ptr<HttpReply> reply) {
  if (const char* why = WhyForeign(request); why != nullptr) {
    RespondText(*reply, 403, why);
    return;
  }
  if (request.path == "/healthz" && IsRead(request)) {
    RespondText(*reply, 200, "ok");
    return;
  }
  StatusOr<Access> access = AccessOf(routes.tokens, request);
  if (request.path == "/readyz" && IsRead(request)) {
    // The reason may contain folder names.
    const std::string reason = routes.not_ready();
    RespondText(*reply, reason.empty() ? 200 : 503,
                reason.empty()                     ? "ready"
                : access.ok() && access->SeesAll() ? reason
                                                   : "not ready");
    return;
  }
  if (std::optional<HttpResponse> entry = Entry(routes.tokens, request)) {
    reply->Respond(*std::move(entry));
    return;
  }
  if (!access.ok()) {
    reply->Respond(AskForToken(request, access.status().message()));
    return;
  }
  request.access = *std::move(access);
  if (request.path.starts_with(kRpcPrefix)) {
    ServeConnect(routes.methods, std::move(request), std::move(reply));
    return;
  }
  if (!IsRead(request)) {
    RespondText(*reply, 405, StrCat(request.path, " takes GET only"));
    return;
  }
  if (request.path == "/metrics") {
    // They count what all users do.
    if (!request.access.SeesAll()) {
      RespondText(*reply, 403,
                  StrCat("/metrics is for the roles viewer and admin; ",
                         request.access.name, " has none of them"));
      return;
    }
    reply->Respond({.status = 200,
                    .headers = {{"Content-Type",
                                 "text/plain; version=0.0.4; charset=utf-8"},
                                {"X-Content-Type-Options", "nosniff"}},
                    .body = routes.metrics()});
  } else if (request.path.starts_with('/')) {
    ServeFile(routes.files, request, *reply);
  } else {
    RespondText(*reply, 400, "the path must begin with /");
  }
}

}  // namespace

HttpResponse TextResponse(int status, std::string text) {
  return {.status = status,
          .headers = {{"Content-Type", "text/plain; charset=utf-8"},
                      {"Cache-Control", "no-store"},
                      {"X-Content-Type-Options", "nosniff"}},
          .body = std::move(text) + "\n"};
}

HttpHandler MakeHandler(const Routes& routes) {
  return [&routes](HttpRequest request, std::shared_ptr<HttpReply> reply) {
    Serve(routes, std::move(request), std::move(reply));
  };
}

HttpUploadOpener MakeUploadOpener(const Routes& routes, ImportUploads& imports,
                                  GraphPosts* graphs) {
  return
      [&routes, &imports, graphs](const HttpRequest& head) -> HttpUploadStart {
        const bool is_import = head.path == "/import" && !IsRead(head);
        const bool is_graph = graphs != nullptr && head.path == kPutGraphPath;
        if (!is_import && !is_graph) return {};
        if (const char* why = WhyForeign(head); why != nullptr) {
          return {.refused = TextResponse(403, why)};
        }
        const StatusOr<Access> access = AccessOf(routes.tokens, head);
        if (!access.ok()) {
          return {.refused = AskForToken(head, access.status().message())};
        }
        // An import sends what it has read.
        const Status may = CheckMayCall(*access, kPutGraphPath);
        if (!may.ok()) return {.refused = Refusal(may)};
        return is_graph ? graphs->Begin(head, *access)
                        : imports.Begin(head, *access);
      };
}

}  // namespace reprise::server
