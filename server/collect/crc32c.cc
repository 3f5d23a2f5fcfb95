// SPDX-License-Identifier: Apache-2.0
#include "server/collect/crc32c.h"

#include <array>
#include <cstring>

namespace reprise::server {

namespace {

constexpr std::array<uint32_t, 256> MakeTable() {
  std::array<uint32_t, 256> table{};
  for (uint32_t i = 0; i < 256; ++i) {
    uint32_t value = i;
    for (int bit = 0; bit < 8; ++bit) {
      value = (value >> 1) ^ ((value & 1) != 0 ? 0x82f63b78u : 0u);
    }
    table[i] = value;
  }
  return table;
}
constexpr std::array<uint32_t, 256> kTable = MakeTable();

#if defined(__x86_64__)
__attribute__((target("sse4.2"))) uint32_t WithInstruction(
    std::string_view bytes) {
  uint64_t crc = 0xffffffffu;
  while (bytes.size() >= 8) {
    uint64_t word;
    std::memcpy(&word, bytes.data(), 8);
    crc = __builtin_ia32_crc32di(crc, word);
    bytes.remove_prefix(8);
  }
  auto tail = static_cast<uint32_t>(crc);
  for (const char c : bytes) {
    tail = __builtin_ia32_crc32qi(tail, static_cast<uint8_t>(c));
  }
  return ~tail;
}
#endif

}  // namespace

uint32_t ChunkCrc32cPortable(std::string_view bytes) {
  uint32_t crc = 0xffffffffu;
  for (const char c : bytes) {
    crc = kTable[(crc ^ static_cast<uint8_t>(c)) & 0xff] ^ (crc >> 8);
  }
  return ~crc;
}

uint32_t ChunkCrc32c(std::string_view bytes) {
#if defined(__x86_64__)
  static const bool has_instruction = __builtin_cpu_supports("sse4.2");
  if (has_instruction) return WithInstruction(bytes);
#endif
  return ChunkCrc32cPortable(bytes);
}

}  // namespace reprise::server
