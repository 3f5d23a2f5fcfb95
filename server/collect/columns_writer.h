// SPDX-License-Identifier: Apache-2.0
//
// Builds one chunk: columns from rows, and the reports that go with them.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <memory>
#include <string>

#include "profiler/include/reprise_wire.h"
#include "reprise/v1/ingest.pb.h"
#include "server/collect/chunk_builder.h"

namespace reprise::server {

// The largest value that SQLite and int64 fields can hold safely; real counts
// and times never come close.
inline constexpr uint64_t kLargestValue = uint64_t{1} << 62;
inline bool Fits(std::initializer_list<uint64_t> values) {
  for (const uint64_t value : values) {
    if (value > kLargestValue) return false;
  }
  return true;
}

// One record as the columns hold it.
struct Row {
  uint64_t start_ns = 0, dur_ns = 0, op = 0, stream = 0, ptr = 0, extra = 0;
  int64_t bytes = 0;
  uint32_t kind = 0, name = 0, device = 0, corr = 0, thread = 0, graph = 0;
};

// Fills all fields but `start_ns` from a record of a kind that has a row.
// Returns false if the record is malformed or of another kind.
bool FillRow(const reprise_slot& slot, Row& row);

// A packed repeated field of a proto, built directly in protobuf's wire format:
// one pass over the records, without a vector of values that protobuf would
// first measure and then serialize.
//
//   field number and wire type 2 · length · values, each a varint or 8 bytes
//
// O(1) per value. https://protobuf.dev/programming-guides/encoding/#packed
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

class ColumnsWriter {
 public:
  void Add(const Row& row);

  // The chunk's reports. Call AddedReport after adding one.
  v1::Columns& reports() { return reports_; }
  void AddedReport(uint64_t at_ns);

  void AddDropped(uint64_t count);

  bool empty() const { return !covered_; }
  bool full() const;

  // Returns the chunk and resets the writer. The body is byte for byte what
  // protobuf would serialize for the same Columns. A column of zeros is left
  // empty, except for the two that always have values.
  v1::Chunk Finish();

 private:
  void Cover(uint64_t from, uint64_t to);
  std::string Body() const;

  static PackedColumn Column(int field) {
    return PackedColumn(static_cast<uint32_t>(field), kChunkRecords);
  }
  PackedColumn start_ns_ = Column(v1::Columns::kStartNsFieldNumber);
  PackedColumn dur_ns_ = Column(v1::Columns::kDurNsFieldNumber);
  PackedColumn kind_ = Column(v1::Columns::kKindFieldNumber);
  PackedColumn op_ = Column(v1::Columns::kOpFieldNumber);
  PackedColumn name_ = Column(v1::Columns::kNameFieldNumber);
  PackedColumn stream_ = Column(v1::Columns::kStreamFieldNumber);
  PackedColumn device_ = Column(v1::Columns::kDeviceFieldNumber);
  PackedColumn bytes_ = Column(v1::Columns::kBytesFieldNumber);
  PackedColumn ptr_ = Column(v1::Columns::kPtrFieldNumber);
  PackedColumn corr_ = Column(v1::Columns::kCorrFieldNumber);
  PackedColumn thread_ = Column(v1::Columns::kThreadFieldNumber);
  PackedColumn extra_ = Column(v1::Columns::kExtraFieldNumber);
  PackedColumn graph_ = Column(v1::Columns::kGraphFieldNumber);
  v1::Columns reports_;  // steps, checks and states only
  size_t rows_ = 0;
  uint64_t t0_ = 0;
  uint64_t t1_ = 0;
  uint64_t dropped_ = 0;
  size_t size_ = 0;  // upper bound of the body's size
  bool covered_ = false;
};

}  // namespace reprise::server
