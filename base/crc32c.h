// SPDX-License-Identifier: Apache-2.0
//
// CRC-32C (Castagnoli), the checksum of Chunk.body; that of "123456789" is
// 0xe3069283. Uses the SSE 4.2 instruction, or tables for eight bytes at a
// time.
#pragma once

#include <cstdint>
#include <string_view>

namespace reprise {

uint32_t Crc32c(std::string_view bytes);

// The table version, for processors without the instruction and for the test
// that compares the two.
uint32_t Crc32cPortable(std::string_view bytes);

}  // namespace reprise
