// SPDX-License-Identifier: Apache-2.0
#include "formats/import/recording.h"

#include <algorithm>
#include <utility>

namespace reprise::formats {

namespace {

constexpr size_t kMostNames = 200'000;
constexpr size_t kMostTextBytes = size_t{64} << 20;
constexpr size_t kMostOpNameBytes = 1024;
constexpr size_t kMostStackBytes = 4096;
constexpr int64_t kMostLiveBytes = int64_t{1} << 62;

char Printable(char c) {
  const auto code = static_cast<unsigned char>(c);
  return code < 0x20 || code >= 0x7f ? '?' : c;
}

}  // namespace

uint32_t RecordingNames::Intern(std::string_view text) {
  std::string key(text.substr(0, kMostOpNameBytes));
  // The text is from a file: keep only printable ASCII.
  for (char& c : key) c = Printable(c);
  return InternKey(std::move(key));
}

uint32_t RecordingNames::InternStack(std::string_view lines) {
  // Whole frames only.
  if (lines.size() > kMostStackBytes) {
    const size_t end = lines.rfind('\n', kMostStackBytes);
    lines = lines.substr(0, end == std::string_view::npos ? 0 : end);
  }
  std::string key(lines);
  for (char& c : key) c = c == '\n' ? c : Printable(c);
  return InternKey(std::move(key));
}

uint32_t RecordingNames::InternKey(std::string key) {
  if (key.empty()) return 0;
  const auto found = ids_.find(key);
  if (found != ids_.end()) return found->second;
  if (texts_.size() >= kMostNames || bytes_ + key.size() > kMostTextBytes) {
    return 0;
  }
  bytes_ += key.size();
  texts_.push_back(key);
  const auto id = static_cast<uint32_t>(texts_.size());
  ids_.emplace(std::move(key), id);
  return id;
}

bool MemorySum::Add(int64_t time_ns, int64_t bytes) {
  if (bytes > kMostLiveBytes || bytes < -kMostLiveBytes ||
      live > kMostLiveBytes || live < -kMostLiveBytes) {
    return false;
  }
  live += bytes;
  lowest = std::min(lowest, live);
  if (live > highest) {
    highest = live;
    highest_at_ns = time_ns;
    highest_event = events;
  }
  ++events;
  return live <= kMostLiveBytes && live >= -kMostLiveBytes;
}

}  // namespace reprise::formats
