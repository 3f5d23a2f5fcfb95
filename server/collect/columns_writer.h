// SPDX-License-Identifier: Apache-2.0
//
// Builds one chunk: columns from rows, and the reports that go with them.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>

#include "profiler/include/reprise_wire.h"
#include "reprise/v1/ingest.pb.h"
#include "server/collect/chunk_builder.h"
#include "server/collect/packed_column.h"

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
  NewChunk Finish();

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
