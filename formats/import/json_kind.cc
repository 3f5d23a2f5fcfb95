// SPDX-License-Identifier: Apache-2.0
#include "formats/import/json_kind.h"

#include <optional>
#include <string>

namespace reprise::formats {

namespace {

constexpr uint64_t kMostScannedBytes = 1 << 20;
constexpr size_t kMostKeyText = 32;

std::optional<JsonKind> KindOfKey(const std::string& key) {
  if (key == "traceEvents" || key == "deviceProperties") {
    return JsonKind::kTrace;
  }
  if (key == "schedule" || key == "plan_id" || key == "planId") {
    return JsonKind::kPlan;
  }
  if (key == "ops" || key == "storages" || key == "static_bytes" ||
      key == "staticBytes") {
    return JsonKind::kGraph;
  }
  return std::nullopt;
}

std::optional<JsonKind> KindOfFormat(const std::string& format) {
  if (format.starts_with("reprise.graph/")) return JsonKind::kGraph;
  if (format.starts_with("reprise.plan/")) return JsonKind::kPlan;
  return std::nullopt;
}

// Returns the first kMostKeyText bytes of the text after an opening quote.
std::string ReadText(ByteSource& source) {
  std::string text;
  for (int c = source.Next(); c >= 0 && c != '"'; c = source.Next()) {
    if (c == '\\') c = source.Next();
    if (text.size() < kMostKeyText) text += static_cast<char>(c);
    if (source.position() > kMostScannedBytes) break;
  }
  return text;
}

}  // namespace

JsonKind KindOfJson(ByteSource& source) {
  int depth = 0;
  std::string text;    // last text at depth 1
  bool value = false;  // after "format":
  for (int c = source.Next(); c >= 0; c = source.Next()) {
    if (source.position() > kMostScannedBytes) break;
    if (c == '{' || c == '[') ++depth;
    if (c == '}' || c == ']') --depth;
    if (c == '"') {
      std::string next = ReadText(source);
      if (depth != 1) continue;
      text = std::move(next);
      if (!value) continue;
      if (const auto kind = KindOfFormat(text)) return *kind;
    }
    if (depth != 1) continue;
    if (c == ',') value = false;
    if (c == ':') {
      if (const auto kind = KindOfKey(text)) return *kind;
      value = text == "format";
    }
  }
  return JsonKind::kTrace;
}

}  // namespace reprise::formats
