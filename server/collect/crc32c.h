// SPDX-License-Identifier: Apache-2.0
//
// CRC-32C (Castagnoli), as Chunk.crc32c carries it: of "123456789" it is
// 0xe3069283. Uses the processor's instruction where there is one.
#pragma once

#include <cstdint>
#include <string_view>

namespace reprise::server {

uint32_t ChunkCrc32c(std::string_view bytes);

// The table-driven form, for processors without the instruction and for the
// test that compares the two.
uint32_t ChunkCrc32cPortable(std::string_view bytes);

}  // namespace reprise::server
