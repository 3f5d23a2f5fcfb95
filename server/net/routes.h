// SPDX-License-Identifier: Apache-2.0
//
// What the server says over HTTP, besides RPCs:
//
//   GET /healthz   200 while the process lives
//   GET /readyz    200 while it takes work, else 503; the reason for those who
//                  have the token
//   GET /metrics   Prometheus text
//   GET /...       the dashboard; a path without a file's ending is one of its
//                  pages, and gets index.html
//   POST /reprise.v1.*/*   Connect
//   POST /import           a file becomes a run (import_upload.h)
//
// Every request must name a loopback host, and one that a page sent must come
// from a page of this server. All but the first two need the token
// (page_gate.h).
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>

#include "server/net/http.h"
#include "server/net/import_upload.h"
#include "server/net/secret.h"
#include "server/net/web_files.h"
#include "server/service/method.h"

namespace reprise::server {

struct Routes {
  const MethodTable& methods;
  std::span<const WebFile> files;
  // Empty when ready, else the reason.
  std::function<std::string()> not_ready;
  std::function<std::string()> metrics;
  const Secret& secret;
};

// `routes` outlives the handler.
HttpHandler MakeHandler(const Routes& routes);

// Bodies that are files; `routes` and `imports` outlive the opener.
HttpUploadOpener MakeUploadOpener(const Routes& routes, ImportUploads& imports);

}  // namespace reprise::server
