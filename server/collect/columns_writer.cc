// SPDX-License-Identifier: Apache-2.0
#include "server/collect/columns_writer.h"

#include <algorithm>

#include "base/crc32c.h"

namespace reprise::server {

namespace {

constexpr int32_t kMaxDevice = 1023;
// Upper bounds for the size of a report, with its name, and of a row in a
// chunk.
constexpr size_t kReportBytes = 700;
constexpr size_t kRecordBytes = 96;
static_assert(kChunkRecords * kRecordBytes < kChunkBytes);

bool FillDevice(int32_t device, Row& row) {
  if (device < -1 || device > kMaxDevice) return false;
  row.device = static_cast<uint32_t>(device);
  return true;
}

}  // namespace

bool FillRow(const reprise_slot& slot, Row& row) {
  const auto& body = slot.body;
  row.kind = slot.kind;
  row.thread = slot.thread;
  switch (slot.kind) {
    case REPRISE_RECORD_KERNEL:
    case REPRISE_RECORD_COPY:
    case REPRISE_RECORD_SET: {
      const auto& k = body.kernel;
      row.dur_ns = k.dur;
      row.name = k.name;
      row.stream = k.stream;
      row.corr = k.correlation;
      row.extra = k.flags;
      row.graph = k.graph_id;
      if (slot.kind == REPRISE_RECORD_KERNEL) {
        row.ptr = k.graph_node_or_bytes;
      } else {
        row.bytes = static_cast<int64_t>(k.graph_node_or_bytes);
        if (!Fits({k.graph_node_or_bytes})) return false;
      }
      return Fits({k.dur}) && FillDevice(k.device, row);
    }
    case REPRISE_RECORD_LINK:
    case REPRISE_RECORD_API:
      row.op = body.api.external_id;
      row.dur_ns = body.api.dur;
      row.corr = body.api.correlation;
      row.extra = body.api.cbid;
      return Fits({body.api.dur, body.api.external_id});
    case REPRISE_RECORD_OP_BEGIN:
      row.op = body.op.op;
      row.name = body.op.name;
      row.corr = body.op.shapes;
      row.extra = body.op.parent;
      row.bytes = body.op.seq_nr;
      row.ptr = body.op.fwd_thread;
      return Fits({body.op.op, body.op.parent});
    case REPRISE_RECORD_OP_END:
      row.op = body.op.op;
      return Fits({body.op.op});
    case REPRISE_RECORD_ALLOC:
      row.ptr = body.alloc.address;
      row.bytes = body.alloc.bytes;
      row.stream = body.alloc.stream;
      row.op = body.alloc.op;
      row.extra = body.alloc.what;
      row.corr = slot.flags & 3U;
      return body.alloc.bytes < static_cast<int64_t>(kLargestValue) &&
             body.alloc.bytes > -static_cast<int64_t>(kLargestValue) &&
             Fits({body.alloc.op}) && FillDevice(body.alloc.device, row);
    case REPRISE_RECORD_STEP:
      row.extra = body.step.step;
      return Fits({body.step.step});
    case REPRISE_RECORD_CLOCK:
      row.ptr = body.clock.realtime;
      row.extra = body.clock.boottime;
      return Fits({body.clock.realtime, body.clock.boottime});
    case REPRISE_RECORD_LOSS:
      if (!Fits({body.loss.count, body.loss.last_ts})) return false;
      row.dur_ns =
          body.loss.last_ts > slot.ts_ns ? body.loss.last_ts - slot.ts_ns : 0;
      row.bytes = static_cast<int64_t>(body.loss.count);
      row.extra = body.loss.why;
      return true;
    case REPRISE_RECORD_OOM:
      row.bytes = static_cast<int64_t>(body.oom.asked);
      row.ptr = body.oom.total;
      row.extra = body.oom.free_bytes;
      return Fits({body.oom.asked, body.oom.total, body.oom.free_bytes}) &&
             FillDevice(body.oom.device, row);
    default:
      return false;
  }
}

void ColumnsWriter::Add(const Row& row) {
  start_ns_.AddFixed(row.start_ns);
  dur_ns_.AddVarint(row.dur_ns);
  kind_.AddVarint(row.kind);
  op_.AddVarint(row.op);
  name_.AddVarint(row.name);
  stream_.AddVarint(row.stream);
  device_.AddVarint(row.device);
  bytes_.AddSigned(row.bytes);
  ptr_.AddFixed(row.ptr);
  corr_.AddVarint(row.corr);
  thread_.AddVarint(row.thread);
  extra_.AddVarint(row.extra);
  graph_.AddVarint(row.graph);
  ++rows_;
  Cover(row.start_ns, row.start_ns + row.dur_ns);
  size_ += kRecordBytes;
}

void ColumnsWriter::AddedReport(uint64_t at_ns) {
  Cover(at_ns, at_ns);
  size_ += kReportBytes;
}

void ColumnsWriter::AddDropped(uint64_t count) {
  dropped_ = std::min(dropped_ + count, kLargestValue);
}

bool ColumnsWriter::full() const {
  return rows_ >= kChunkRecords || size_ >= kChunkBytes;
}

void ColumnsWriter::Cover(uint64_t from, uint64_t to) {
  t0_ = covered_ ? std::min(t0_, from) : from;
  t1_ = std::max(t1_, to);
  covered_ = true;
}

std::string ColumnsWriter::Body() const {
  const PackedColumn* const before_reports[] = {
      &start_ns_, &dur_ns_, &kind_, &op_,   &name_,   &stream_,
      &device_,   &bytes_,  &ptr_,  &corr_, &thread_, &extra_};
  std::string body;
  size_t most = reports_.ByteSizeLong() + 128;  // each column's tag and length
  for (const PackedColumn* column : before_reports) most += column->size();
  body.reserve(most + graph_.size());
  for (const PackedColumn* column : before_reports) {
    const bool always = column == &start_ns_ || column == &kind_;
    if (always || column->any()) column->AppendTo(body);
  }
  reports_.AppendToString(&body);
  if (graph_.any()) graph_.AppendTo(body);
  return body;
}

v1::Chunk ColumnsWriter::Finish() {
  v1::Chunk chunk;
  chunk.set_t0_ns(t0_);
  chunk.set_t1_ns(t1_);
  chunk.set_count(static_cast<uint32_t>(rows_));
  chunk.set_body(Body());
  chunk.set_crc32c(Crc32c(chunk.body()));
  chunk.set_dropped_before(dropped_);
  for (PackedColumn* column :
       {&start_ns_, &dur_ns_, &kind_, &op_, &name_, &stream_, &device_, &bytes_,
        &ptr_, &corr_, &thread_, &extra_, &graph_}) {
    column->Clear();
  }
  reports_.Clear();
  rows_ = size_ = 0;
  t0_ = t1_ = dropped_ = 0;
  covered_ = false;
  return chunk;
}

}  // namespace reprise::server
