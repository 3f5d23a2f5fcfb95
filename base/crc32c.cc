// SPDX-License-Identifier: Apache-2.0
#include "base/crc32c.h"

#include <array>
#include <cstring>

namespace reprise {

namespace {

using Tables = std::array<std::array<uint32_t, 256>, 8>;

constexpr Tables MakeTables() {
  constexpr uint32_t kReflectedPolynomial = 0x82f63b78u;
  Tables tables{};
  for (uint32_t i = 0; i < 256; ++i) {
    uint32_t crc = i;
    for (int bit = 0; bit < 8; ++bit) {
      crc = (crc >> 1) ^ ((crc & 1) != 0 ? kReflectedPolynomial : 0);
    }
    tables[0][i] = crc;
  }
  for (size_t k = 1; k < tables.size(); ++k) {
    for (uint32_t i = 0; i < 256; ++i) {
      const uint32_t previous = tables[k - 1][i];
      tables[k][i] = (previous >> 8) ^ tables[0][previous & 0xff];
    }
  }
  return tables;
}

constexpr Tables kTables = MakeTables();

uint32_t ByTables(uint32_t crc, std::string_view bytes) {
  while (bytes.size() >= 8) {
    uint64_t word = 0;
    std::memcpy(&word, bytes.data(), 8);
    word ^= crc;
    crc = 0;
    for (size_t i = 0; i < 8; ++i) {
      crc ^= kTables[7 - i][(word >> (8 * i)) & 0xff];
    }
    bytes.remove_prefix(8);
  }
  for (const char c : bytes) {
    crc = (crc >> 8) ^ kTables[0][(crc ^ static_cast<uint8_t>(c)) & 0xff];
  }
  return crc;
}

#if defined(__x86_64__)
__attribute__((target("sse4.2"))) uint32_t ByInstruction(
    uint32_t crc, std::string_view bytes) {
  uint64_t wide = crc;
  while (bytes.size() >= 8) {
    uint64_t word = 0;
    std::memcpy(&word, bytes.data(), 8);
    wide = __builtin_ia32_crc32di(wide, word);
    bytes.remove_prefix(8);
  }
  auto narrow = static_cast<uint32_t>(wide);
  for (const char c : bytes) {
    narrow = __builtin_ia32_crc32qi(narrow, static_cast<uint8_t>(c));
  }
  return narrow;
}
#endif

}  // namespace

uint32_t Crc32cPortable(std::string_view bytes) {
  return ~ByTables(~0u, bytes);
}

uint32_t Crc32c(std::string_view bytes) {
#if defined(__x86_64__)
  static const bool has_instruction = __builtin_cpu_supports("sse4.2");
  if (has_instruction) return ~ByInstruction(~0u, bytes);
#endif
  return Crc32cPortable(bytes);
}

}  // namespace reprise
