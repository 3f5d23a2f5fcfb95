// SPDX-License-Identifier: Apache-2.0
#include "formats/convert/digest.h"

#include "base/str_cat.h"

namespace reprise::formats {

Fnv1a64& Fnv1a64::Add(std::string_view bytes) {
  for (const char c : bytes) {
    hash_ = (hash_ ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  }
  return *this;
}

Fnv1a64& Fnv1a64::Add(int64_t value) {
  auto rest = static_cast<uint64_t>(value);
  for (int i = 0; i < 8; ++i, rest >>= 8) {
    hash_ = (hash_ ^ (rest & 0xff)) * 0x100000001b3u;
  }
  return *this;
}

std::string HexId(uint64_t id) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string text(16, '0');
  for (int i = 15; i >= 0; --i, id >>= 4) text[i] = kDigits[id & 15];
  return text;
}

StatusOr<uint64_t> ParseHexId(std::string_view text) {
  const std::string shown(text.substr(0, 40));
  if (text.size() != 16) {
    return InvalidArgument(
        StrCat("id \"", shown, "\": must be 16 lower-case hex digits"));
  }
  uint64_t id = 0;
  for (const char c : text) {
    const bool digit = c >= '0' && c <= '9';
    if (!digit && (c < 'a' || c > 'f')) {
      return InvalidArgument(
          StrCat("id \"", shown, "\": must be 16 lower-case hex digits"));
    }
    id = id * 16 + static_cast<uint64_t>(digit ? c - '0' : c - 'a' + 10);
  }
  if (id == 0) return InvalidArgument("id \"0000000000000000\": 0 means none");
  return id;
}

}  // namespace reprise::formats
