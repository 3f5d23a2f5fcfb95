// SPDX-License-Identifier: Apache-2.0
//
// A packed repeated field of a proto, built directly in protobuf's wire format:
// one pass over the records, without a vector of values that protobuf would
// first measure and then serialize.
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

  // `values` is the most values to be added before a Clear; the caller counts.
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

  // Returns whether any value is not 0.
  bool any() const { return any_ != 0; }
  size_t size() const { return static_cast<size_t>(end_ - bytes_.get()); }

  // Appends the field as protobuf would serialize it; nothing if there is no
  // value.
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
