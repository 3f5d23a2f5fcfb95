// SPDX-License-Identifier: Apache-2.0
#include "server/net/compress.h"

#include <algorithm>
#include <array>
#include <cctype>

#ifdef REPRISE_HAVE_ZLIB
#include <zlib.h>
#endif

namespace reprise::server {

namespace {

constexpr size_t kLeastBytes = 1024;

std::string_view Trim(std::string_view text) {
  while (text.starts_with(' ') || text.starts_with('\t')) text.remove_prefix(1);
  while (text.ends_with(' ') || text.ends_with('\t')) text.remove_suffix(1);
  return text;
}

bool EqualIgnoringCase(std::string_view a, std::string_view b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](unsigned char x, unsigned char y) {
                      return std::tolower(x) == std::tolower(y);
                    });
}

#ifdef REPRISE_HAVE_ZLIB

bool IsWorthIt(std::string_view type) {
  constexpr std::array<std::string_view, 4> kTypes = {
      "text/", "application/json", "application/proto", "image/svg"};
  return std::any_of(
      kTypes.begin(), kTypes.end(),
      [&](std::string_view prefix) { return type.starts_with(prefix); });
}

// Runs on the only HTTP thread: half a megabyte takes about 5 ms. The default
// level would take three times as long for a tenth fewer bytes.
constexpr int kLevel = 3;
constexpr int kGzipWindow = 15 + 16;

std::optional<std::string> Gzip(std::string_view bytes) {
  z_stream stream{};
  if (deflateInit2(&stream, kLevel, Z_DEFLATED, kGzipWindow, 8,
                   Z_DEFAULT_STRATEGY) != Z_OK) {
    return std::nullopt;
  }
  std::string out(deflateBound(&stream, bytes.size()), '\0');
  stream.next_in =
      reinterpret_cast<Bytef*>(const_cast<char*>(bytes.data()));  // only read
  stream.avail_in = static_cast<uInt>(bytes.size());
  stream.next_out = reinterpret_cast<Bytef*>(out.data());
  stream.avail_out = static_cast<uInt>(out.size());
  const int ended = deflate(&stream, Z_FINISH);
  out.resize(stream.total_out);
  deflateEnd(&stream);
  if (ended != Z_STREAM_END) return std::nullopt;
  return out;
}

#endif

}  // namespace

bool Accepts(std::string_view accept_encoding, std::string_view coding) {
  while (!accept_encoding.empty()) {
    const size_t comma = accept_encoding.find(',');
    const std::string_view one = accept_encoding.substr(0, comma);
    accept_encoding = comma == std::string_view::npos
                          ? std::string_view()
                          : accept_encoding.substr(comma + 1);
    const size_t semicolon = one.find(';');
    if (!EqualIgnoringCase(Trim(one.substr(0, semicolon)), coding)) continue;
    if (semicolon == std::string_view::npos) return true;
    std::string_view weight = Trim(one.substr(semicolon + 1));
    if (!weight.starts_with("q=")) return true;
    weight.remove_prefix(2);
    return weight.find_first_not_of("0.") != std::string_view::npos;
  }
  return false;
}

void Compress([[maybe_unused]] HttpResponse& response) {
#ifdef REPRISE_HAVE_ZLIB
  const std::string_view bytes =
      response.view.empty() ? std::string_view(response.body) : response.view;
  std::string_view type;
  for (const auto& [name, value] : response.headers) {
    if (name == "Content-Encoding") return;
    if (name == "Content-Type") type = value;
  }
  if (bytes.size() < kLeastBytes || !IsWorthIt(type)) return;
  std::optional<std::string> fewer = Gzip(bytes);
  if (!fewer || fewer->size() >= bytes.size()) return;
  response.body = *std::move(fewer);
  response.view = {};
  response.headers.emplace_back("Content-Encoding", "gzip");
  response.headers.emplace_back("Vary", "Accept-Encoding");
#endif
}

}  // namespace reprise::server
