// SPDX-License-Identifier: Apache-2.0
//
// Compresses responses. The dashboard's files are compressed at build time
// (brotli); everything else as it is sent (gzip, fast).
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "server/net/http.h"

namespace reprise::server {

// Returns whether an Accept-Encoding header accepts this coding: it is listed,
// and not with q=0.
bool Accepts(std::string_view accept_encoding, std::string_view coding);

// Compresses the body with gzip and sets the headers, if that is worthwhile:
// text or messages of at least 1 KiB that are not compressed already. Does
// nothing in a build without zlib.
void Compress(HttpResponse& response);

}  // namespace reprise::server
