// SPDX-License-Identifier: Apache-2.0
#include "base/uuid.h"

#include <array>
#include <chrono>
#include <cstdint>
#include <random>

namespace reprise {
namespace {

// Formats a UUIDv7; `bytes` has the part after the time.
std::string Text(int64_t unix_ms, std::array<uint8_t, 16> bytes) {
  for (int i = 0; i < 6; ++i) {
    bytes[static_cast<size_t>(i)] =
        static_cast<uint8_t>(unix_ms >> (40 - 8 * i));
  }
  bytes[6] = static_cast<uint8_t>(0x70 | (bytes[6] & 0x0f));  // version 7
  bytes[8] = static_cast<uint8_t>(0x80 | (bytes[8] & 0x3f));  // variant
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  for (size_t i = 0; i < bytes.size(); ++i) {
    if (i == 4 || i == 6 || i == 8 || i == 10) text += '-';
    text += kDigits[bytes[i] >> 4];
    text += kDigits[bytes[i] & 15];
  }
  return text;
}

}  // namespace

std::string NewUuid() {
  std::random_device random;
  std::array<uint8_t, 16> bytes{};
  for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(random());
  const auto now = std::chrono::duration_cast<std::chrono::milliseconds>(
      std::chrono::system_clock::now().time_since_epoch());
  return Text(now.count(), bytes);
}

std::string UuidOf(int64_t unix_ms, std::string_view name) {
  std::array<uint8_t, 16> bytes{};
  uint64_t hash = 0xcbf29ce484222325;  // FNV-1a
  for (const char c : name) {
    hash = (hash ^ static_cast<uint8_t>(c)) * 0x100000001b3;
  }
  for (size_t i = 6; i < bytes.size(); ++i) {
    hash = (hash ^ i) * 0x100000001b3;
    bytes[i] = static_cast<uint8_t>(hash >> 32);
  }
  return Text(unix_ms, bytes);
}

}  // namespace reprise
