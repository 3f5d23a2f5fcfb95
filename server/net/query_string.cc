// SPDX-License-Identifier: Apache-2.0
#include "server/net/query_string.h"

#include <algorithm>
#include <charconv>

namespace reprise::server {

namespace {

// Decodes a URL component: "%41+b" -> "A b".
std::string Decoded(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    unsigned value = 0;
    if (text[i] == '%' && i + 2 < text.size() &&
        std::from_chars(&text[i + 1], &text[i + 3], value, 16).ptr ==
            &text[i + 3]) {
      out += static_cast<char>(value);
      i += 2;
    } else {
      out += text[i] == '+' ? ' ' : text[i];
    }
  }
  return out;
}

}  // namespace

std::string QueryValue(std::string_view query, std::string_view name) {
  std::string value;
  while (!query.empty()) {
    const std::string_view pair = query.substr(0, query.find('&'));
    query.remove_prefix(std::min(query.size(), pair.size() + 1));
    if (pair.size() > name.size() && pair.starts_with(name) &&
        pair[name.size()] == '=') {
      value = Decoded(pair.substr(name.size() + 1));
    }
  }
  return value;
}

}  // namespace reprise::server
