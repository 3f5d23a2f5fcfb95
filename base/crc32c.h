// SPDX-License-Identifier: Apache-2.0
//
// CRC-32C (Castagnoli), the checksum of Chunk.body: of "123456789" it is
// 0xe3069283. With SSE 4.2 by instruction, else eight bytes at a time by
// tables.
#pragma once

#include <cstdint>
#include <string_view>

namespace reprise {

uint32_t Crc32c(std::string_view bytes);

// By tables, for processors without the instruction and for the test that
// compares the two.
uint32_t Crc32cPortable(std::string_view bytes);

}  // namespace reprise
