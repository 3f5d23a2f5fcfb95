// SPDX-License-Identifier: Apache-2.0
//
// The built dashboard, linked into the binary by embed_web.cmake. Empty if it
// was not built.
#pragma once

#include <span>
#include <string_view>

namespace reprise::server {

struct WebFile {
  std::string_view path;  // "index.html", "assets/index-3f2a.js"
  std::string_view bytes;
};

std::span<const WebFile> WebFiles();

}  // namespace reprise::server
