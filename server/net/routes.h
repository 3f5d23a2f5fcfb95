// SPDX-License-Identifier: Apache-2.0
//
// What the server offers over HTTP:
//
//   GET /healthz   200 while the process lives
//   GET /readyz    200 while it accepts work, else 503; the reason only for
//                  callers with the token
//   GET /metrics   Prometheus text
//   GET /...       the dashboard; a path without a file extension is one of its
//                  pages, and gets index.html
//   POST /reprise.v1.*/*   Connect
//   POST /reprise.v1.Planner/PutGraph   a step graph (graph_upload.h)
//   POST /import           turns a file into a run (import_upload.h)
//
// Every request must name a loopback host, and a request from a page must come
// from a page of this server. All but the first two need the token
// (page_gate.h).
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>

#include "server/net/graph_upload.h"
#include "server/net/http.h"
#include "server/net/import_upload.h"
#include "server/net/secret.h"
#include "server/net/web_files.h"
#include "server/service/calls/method.h"

namespace reprise::server {

struct Routes {
  const MethodTable& methods;
  std::span<const WebFile> files;
  // Empty when ready, else the reason.
  std::function<std::string()> not_ready;
  std::function<std::string()> metrics;
  const Secret& secret;
};

// Returns the handler of all routes. `routes` must outlive it.
HttpHandler MakeHandler(const Routes& routes);

// Returns the opener for bodies that are files; without `graphs` step graphs are
// no such. All must outlive it.
HttpUploadOpener MakeUploadOpener(const Routes& routes, ImportUploads& imports,
                                  GraphPosts* graphs);

}  // namespace reprise::server
