// SPDX-License-Identifier: Apache-2.0
#include "server/collect/columns_writer.h"

#include <algorithm>

#include "base/crc32c.h"

namespace reprise::server {

namespace {

constexpr int32_t kMaxDevice = 1023;
// The most a report (its name included) and a row take in a chunk.
constexpr size_t kReportBytes = 700;
constexpr size_t kRecordBytes = 96;
static_assert(kChunkRecords * kRecordBytes < kChunkBytes);

bool FillDevice(int32_t device, Row& row) {
  if (device < -1 || device > kMaxDevice) return false;
  row.device = static_cast<uint32_t>(device);
  return true;
}

}  // namespace

bool Fits(std::initializer_list<uint64_t> values) {
  return std::all_of(values.begin(), values.end(),
                     [](uint64_t v) { return v <= kLargestValue; });
}

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

// ---- ColumnsWriter ----

void ColumnsWriter::Add(const Row& row) {
  rows_.push_back(row);
  Cover(row.start_ns, row.start_ns + row.dur_ns);
  bytes_ += kRecordBytes;
}

void ColumnsWriter::AddedReport(uint64_t at_ns) {
  Cover(at_ns, at_ns);
  bytes_ += kReportBytes;
}

void ColumnsWriter::AddDropped(uint64_t count) {
  dropped_ = std::min(dropped_ + count, kLargestValue);
}

bool ColumnsWriter::full() const {
  return rows_.size() >= kChunkRecords || bytes_ >= kChunkBytes;
}

void ColumnsWriter::Cover(uint64_t from, uint64_t to) {
  t0_ = covered_ ? std::min(t0_, from) : from;
  t1_ = std::max(t1_, to);
  covered_ = true;
}

template <typename Field, typename Value>
void ColumnsWriter::Fill(Field* field, Value Row::*member, bool always) {
  const bool any =
      std::any_of(rows_.begin(), rows_.end(),
                  [member](const Row& row) { return row.*member != Value{}; });
  if (!any && !always) return;
  field->Reserve(static_cast<int>(rows_.size()));
  for (const Row& row : rows_) field->AddAlreadyReserved(row.*member);
}

NewChunk ColumnsWriter::Finish() {
  Fill(columns_.mutable_start_ns(), &Row::start_ns, true);
  Fill(columns_.mutable_dur_ns(), &Row::dur_ns);
  Fill(columns_.mutable_kind(), &Row::kind, true);
  Fill(columns_.mutable_op(), &Row::op);
  Fill(columns_.mutable_name(), &Row::name);
  Fill(columns_.mutable_stream(), &Row::stream);
  Fill(columns_.mutable_device(), &Row::device);
  Fill(columns_.mutable_bytes(), &Row::bytes);
  Fill(columns_.mutable_ptr(), &Row::ptr);
  Fill(columns_.mutable_corr(), &Row::corr);
  Fill(columns_.mutable_thread(), &Row::thread);
  Fill(columns_.mutable_extra(), &Row::extra);
  Fill(columns_.mutable_graph(), &Row::graph);
  NewChunk chunk{.t0_ns = t0_,
                 .t1_ns = t1_,
                 .count = static_cast<uint32_t>(rows_.size()),
                 .body = columns_.SerializeAsString(),
                 .crc32c = 0,
                 .dropped_before = dropped_};
  chunk.crc32c = Crc32c(chunk.body);
  *this = ColumnsWriter();
  return chunk;
}

}  // namespace reprise::server
