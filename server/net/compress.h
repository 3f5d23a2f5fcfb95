// SPDX-License-Identifier: Apache-2.0
//
// Answers in fewer bytes. Files of the dashboard come compressed from their
// build (brotli); everything else is compressed as it is sent (gzip, fast).
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "server/net/http.h"

namespace reprise::server {

// An Accept-Encoding header takes this coding: it is listed, not with q=0.
bool Accepts(std::string_view accept_encoding, std::string_view coding);

// The body in gzip, with the headers that say so, where that is worth it: text
// or messages of at least 1 KiB that are not compressed already. Leaves the
// response alone in a build without zlib.
void Compress(HttpResponse& response);

}  // namespace reprise::server
