// SPDX-License-Identifier: Apache-2.0
//
// Checks everything that arrives on an Ingest stream; until then it is
// untrusted. Errors name the first wrong field as the proto does.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/status.h"
#include "reprise/v1/ingest.pb.h"

namespace reprise::server {

inline constexpr uint32_t kProtoVersion = 1;
inline constexpr size_t kMaxChunkBytes = 1 << 20;
inline constexpr uint32_t kMaxChunkRecords = 4096;
inline constexpr size_t kMaxNameBytes = 4096;
inline constexpr int64_t kMaxNamesPerSession = 1 << 18;
inline constexpr uint32_t kMaxInflight = 64;

// INVALID_ARGUMENT: a malformed id or number; FAILED_PRECONDITION: no common
// version.
Status CheckHello(const v1::Hello& hello);

// Checks size, checksum and columns; returns the parsed columns.
// INVALID_ARGUMENT.
StatusOr<v1::Columns> CheckChunk(const v1::Chunk& chunk);

Status CheckDefs(const v1::Defs& defs);
Status CheckLost(const v1::Lost& lost);
Status CheckCaps(const v1::Caps& caps);

}  // namespace reprise::server
