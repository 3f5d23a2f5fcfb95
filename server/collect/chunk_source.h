// SPDX-License-Identifier: Apache-2.0
//
// Where a forwarder reads what it sends: the collector's spool, or the store of
// a daemon that forwards to a central one (server/forward).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"
#include "reprise/v1/ingest.pb.h"

namespace reprise::server {

struct SpooledName {
  uint64_t ordinal = 0;
  uint32_t name = 0;
  std::string text;
};

// Used by one thread.
class ChunkSource {
 public:
  virtual ~ChunkSource() = default;

  // Returns the chunk with the lowest seq >= `seq`, if any.
  virtual StatusOr<std::optional<v1::Chunk>> NextChunk(int64_t key,
                                                       uint64_t seq) = 0;

  // Returns names with an ordinal above `after`, oldest first, about 256 KiB at
  // most.
  virtual StatusOr<std::vector<SpooledName>> NamesAfter(int64_t key,
                                                        uint64_t after) = 0;

  // Why a chunk is missing, and where chunks are while the server is away.
  virtual std::string missing() const = 0;
  virtual std::string waiting() const = 0;
};

}  // namespace reprise::server
