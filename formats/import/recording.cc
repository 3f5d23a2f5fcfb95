// SPDX-License-Identifier: Apache-2.0
#include "formats/import/recording.h"

#include <algorithm>

namespace reprise::formats {

namespace {

constexpr size_t kMostNames = 100'000;
constexpr size_t kMostNameBytes = 1024;
constexpr int64_t kMostBytes = int64_t{1} << 62;

}  // namespace

uint32_t RecordingNames::Intern(std::string_view text) {
  if (text.empty()) return 0;
  std::string key(text.substr(0, kMostNameBytes));
  // The text is from a file: keep only printable ASCII.
  for (char& c : key) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f ||
        static_cast<unsigned char>(c) >= 0x80) {
      c = '?';
    }
  }
  const auto found = ids_.find(key);
  if (found != ids_.end()) return found->second;
  if (texts_.size() >= kMostNames) return 0;
  texts_.push_back(key);
  const auto id = static_cast<uint32_t>(texts_.size());
  ids_.emplace(std::move(key), id);
  return id;
}

bool MemorySum::Add(int64_t time_ns, int64_t bytes) {
  if (bytes > kMostBytes || bytes < -kMostBytes || live > kMostBytes ||
      live < -kMostBytes) {
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
  return live <= kMostBytes && live >= -kMostBytes;
}

}  // namespace reprise::formats
