// SPDX-License-Identifier: Apache-2.0
//
// Ids of graphs and plans: FNV-1a-64 over their content, so equal content has
// an equal id on every machine. Never 0, which means "none" in the C ABI. In
// protos and JSON an id is 16 lower-case hex digits. Ids are names, not
// protection: someone who wants two graphs with the same id can construct them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/status.h"

namespace reprise::formats {

class Fnv1a64 {
 public:
  Fnv1a64& Add(std::string_view bytes);
  // Adds eight bytes, least significant first, on every machine.
  Fnv1a64& Add(int64_t value);
  uint64_t id() const { return hash_ == 0 ? 1 : hash_; }

 private:
  uint64_t hash_ = 0xcbf29ce484222325u;
};

inline uint64_t IdOf(std::string_view bytes) {
  return Fnv1a64().Add(bytes).id();
}

// 255 -> "00000000000000ff".
std::string HexId(uint64_t id);

// Parses an id. INVALID_ARGUMENT unless `text` is 16 lower-case hex digits and
// not 0.
StatusOr<uint64_t> ParseHexId(std::string_view text);

}  // namespace reprise::formats
