// SPDX-License-Identifier: Apache-2.0
//
// What the server offers over HTTP:
//
//   GET /healthz   200 while the process lives
//   GET /readyz    200 while it accepts work, else 503; the reason only for
//                  callers with the token
//   GET /metrics   Prometheus text, for those who may read everything
//   GET /...       the dashboard; a path without a file extension is one of its
//                  pages, and gets index.html
//   POST /reprise.v1.*/*   Connect
//   POST /reprise.v1.Planner/PutGraph   a step graph (graph_upload.cc)
//   POST /import           turns a file into a run (import_upload.h)
//
// Every request must name a loopback host, and a request from a page must come
// from a page of this server. All but the first two need the token
// (below).
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "server/net/http.h"
#include "server/net/import_upload.h"
#include "server/net/tokens.h"
#include "server/service/calls/method.h"

namespace reprise::server {

// The built dashboard, linked into the binary by embed_web.cmake. Empty if it
// was not built.
struct WebFile {
  std::string_view path;  // "index.html", "assets/index-3f2a.js"
  std::string_view bytes;
};

std::span<const WebFile> WebFiles();

struct Routes {
  const MethodTable& methods;
  std::span<const WebFile> files;
  // Empty when ready, else the reason.
  std::function<std::string()> not_ready;
  std::function<std::string()> metrics;
  const Tokens& tokens;
};

// Returns the handler of all routes. `routes` must outlive it.
HttpHandler MakeHandler(const Routes& routes);

// Returns the opener for bodies that are files; without `graphs` step graphs are
// no such. All must outlive it.
HttpUploadOpener MakeUploadOpener(const Routes& routes, ImportUploads& imports,
                                  GraphPosts* graphs);

// Controls access over HTTP: a request must name this machine, must not come
// from a page of another site, and must have the token.
//
//   link     GET /runs/1?token=T  ─▶  sets the cookie, redirects to /runs/1
//   page     sends its cookie: HttpOnly, SameSite=Strict
//   others   send Authorization: Bearer T

// Returns a response with one line of text.
HttpResponse TextResponse(int status, std::string text);

// Returns why a request is refused regardless of what it asks for, or null.
const char* WhyForeign(const HttpRequest& request);

// Returns what the caller may do, by its token or the cookie made from it.
// UNAUTHENTICATED.
StatusOr<Access> AccessOf(const Tokens& tokens, const HttpRequest& request);

// Answers a link with a token: sets the cookie and redirects to the same page
// without the token in its address. Nothing if the request is not such a link.
// A wrong token gets the answer of AskForToken.
std::optional<HttpResponse> Entry(const Tokens& tokens,
                                  const HttpRequest& request);

// Returns 401 and one sentence, why not or how to get in, in the format that the
// caller reads.
HttpResponse AskForToken(const HttpRequest& request,
                         const std::string& why = kAsksForToken);

}  // namespace reprise::server
