// SPDX-License-Identifier: Apache-2.0
//
// A packed repeated field of a proto, in protobuf's wire format as it grows:
// one pass over the records, and no vector of values that is walked again to
// be measured and once more to be written.
//
//   field number and wire type 2 · length · values, each a varint or 8 bytes
//
// O(1) per value. https://protobuf.dev/programming-guides/encoding/#packed
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>

namespace reprise::server {

static_assert(std::endian::native == std::endian::little,
              "fixed64 values are stored as they are in memory");

class PackedColumn {
 public:
  static constexpr size_t kMostBytes = 10;  // of one value

  // At most `values` values until the next Clear: the caller counts.
  PackedColumn(uint32_t field, size_t values)
      : field_(field),
        bytes_(std::make_unique_for_overwrite<uint8_t[]>(values * kMostBytes)),
        end_(bytes_.get()) {}

  void AddVarint(uint64_t value) {
    any_ |= value;
    while (value >= 0x80) {
      *end_++ = static_cast<uint8_t>(value | 0x80);
      value >>= 7;
    }
    *end_++ = static_cast<uint8_t>(value);
  }
  void AddSigned(int64_t value) {
    const auto bits = static_cast<uint64_t>(value);
    AddVarint((bits << 1) ^ (value < 0 ? ~uint64_t{0} : 0));
  }
  void AddFixed(uint64_t value) {
    any_ |= value;
    std::memcpy(end_, &value, sizeof value);
    end_ += sizeof value;
  }

  // Some value is not 0.
  bool any() const { return any_ != 0; }
  size_t size() const { return static_cast<size_t>(end_ - bytes_.get()); }

  // As protobuf would write it; nothing without values.
  void AppendTo(std::string& message) const {
    if (size() == 0) return;
    AppendVarint(uint64_t{field_} << 3 | 2, message);
    AppendVarint(size(), message);
    message.append(reinterpret_cast<const char*>(bytes_.get()), size());
  }

  void Clear() {
    end_ = bytes_.get();
    any_ = 0;
  }

 private:
  static void AppendVarint(uint64_t value, std::string& message) {
    for (; value >= 0x80; value >>= 7) {
      message.push_back(static_cast<char>(value | 0x80));
    }
    message.push_back(static_cast<char>(value));
  }

  uint32_t field_;
  std::unique_ptr<uint8_t[]> bytes_;
  uint8_t* end_;
  uint64_t any_ = 0;
};

}  // namespace reprise::server
