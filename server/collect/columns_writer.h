// SPDX-License-Identifier: Apache-2.0
//
// One chunk in the making: rows that become columns, and reports beside them.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <vector>

#include "profiler/include/reprise_wire.h"
#include "reprise/v1/ingest.pb.h"
#include "server/collect/chunk_builder.h"

namespace reprise::server {

// SQLite and int64 fields end here; no honest count or time comes close.
inline constexpr uint64_t kLargestValue = uint64_t{1} << 62;
bool Fits(std::initializer_list<uint64_t> values);

// One record as the columns hold it.
struct Row {
  uint64_t start_ns = 0, dur_ns = 0, op = 0, stream = 0, ptr = 0, extra = 0;
  int64_t bytes = 0;
  uint32_t kind = 0, name = 0, device = 0, corr = 0, thread = 0, graph = 0;
};

// Fills all but `start_ns` from a record of a kind that has a row. False: it
// is malformed, or of a kind that has none.
bool FillRow(const reprise_slot& slot, Row& row);

class ColumnsWriter {
 public:
  void Add(const Row& row);

  // For reports. Call AddedReport after adding one.
  v1::Columns& columns() { return columns_; }
  void AddedReport(uint64_t at_ns);

  void AddDropped(uint64_t count);

  bool empty() const { return !covered_; }
  bool full() const;

  // The chunk; the writer is as new.
  NewChunk Finish();

 private:
  void Cover(uint64_t from, uint64_t to);

  // A column of zeros stays empty, unless it is one that always has values.
  template <typename Field, typename Value>
  void Fill(Field* field, Value Row::*member, bool always = false);

  std::vector<Row> rows_;
  v1::Columns columns_;
  uint64_t t0_ = 0;
  uint64_t t1_ = 0;
  uint64_t dropped_ = 0;
  size_t bytes_ = 0;
  bool covered_ = false;
};

}  // namespace reprise::server
