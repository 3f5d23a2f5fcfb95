// SPDX-License-Identifier: Apache-2.0
//
// CRC-32C (Castagnoli), the checksum of Chunk.body. crc32c("123456789") is
// 0xe3069283. Eight bytes at a time by tables, about 2 GB/s on one core; with
// SSE 4.2 by instruction.
#pragma once

#include <cstdint>
#include <string_view>

namespace reprise::server {

uint32_t Crc32c(std::string_view bytes);

}  // namespace reprise::server
