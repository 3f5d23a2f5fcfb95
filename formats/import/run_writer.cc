// SPDX-License-Identifier: Apache-2.0
#include "formats/import/run_writer.h"

#include <algorithm>
#include <utility>

#include "base/crc32c.h"
#include "base/str_cat.h"
#include "profiler/include/reprise_wire.h"

namespace reprise::formats {

namespace {

// Of the segments in a chunk, as the server takes them.
constexpr int kChunkBlocks = 16'384;
constexpr int kChunkRecords = 4096;
// CLOCK_MONOTONIC of the step's begin: arbitrary, but not 0.
constexpr int64_t kBeginNs = 1'000'000'000;
// The time of the baseline.
constexpr int64_t kBefore = -1;
// Limit for times: one year. Times in files are not trusted.
constexpr int64_t kMostNs = int64_t{31'536'000} * 1'000'000'000;

}  // namespace

RunWriter::RunWriter(const RunIdentity& identity, const MemorySummary& summary,
                     const RecordingNames& names, SendUp send,
                     uint64_t most_events)
    : identity_(identity),
      summary_(summary),
      names_(names),
      send_(std::move(send)) {
  // A group has up to three records.
  if (summary.events > most_events) {
    group_ = summary.events / (most_events / 3) + 1;
  }
}

bool RunWriter::Folds(const MemorySummary& summary) {
  return summary.events > kMostEvents;
}

Status RunWriter::Introduce() {
  v1::Up up;
  v1::Hello& hello = *up.mutable_hello();
  hello.set_proto_version(1);
  hello.set_min_version(1);
  hello.set_session_id(identity_.session_id);
  hello.set_run_id(identity_.run_id);
  v1::SessionInfo& info = *hello.mutable_info();
  info.set_host(identity_.host);
  info.set_world(1);
  auto& labels = *info.mutable_labels();
  labels["name"] = ValidUtf8(summary_.name, 256);
  labels["imported"] = summary_.format;
  if (!summary_.device.empty()) labels["device"] = summary_.device;
  info.set_monotonic_ns(kBeginNs);
  info.set_realtime_ns(identity_.now_ns);
  RETURN_IF_ERROR(send_(up));
  return SendNotes();
}

Status RunWriter::Begin() {
  RETURN_IF_ERROR(Introduce());
  // Before the step, so that an event at its very begin follows it.
  RETURN_IF_ERROR(
      Record(kBefore, v1::RECORD_KIND_ALLOC,
             {.bytes = summary_.baseline_bytes, .extra = REPRISE_BASELINE}));
  return Record(0, v1::RECORD_KIND_STEP, {.extra = 1});
}

Status RunWriter::WriteWithoutMemory() {
  RETURN_IF_ERROR(Introduce());
  return SayBye();
}

// Stores the notes with the run, in the form of missing capabilities.
Status RunWriter::SendNotes() {
  v1::Up up;
  v1::Caps& caps = *up.mutable_caps();
  for (const std::string& note : summary_.notes) {
    v1::Capability& one = *caps.add_capabilities();
    one.set_name("note");
    one.set_why(ValidUtf8(note, 2048));
  }
  if (Folds(summary_)) {
    v1::Capability& one = *caps.add_capabilities();
    one.set_name("note");
    one.set_why(
        "neighbouring events are folded to 10 million; no peak is lost, but "
        "who allocated is");
  }
  return send_(up);
}

Status RunWriter::Record(int64_t time_ns, v1::RecordKind kind,
                         const Fields& fields) {
  const auto at = static_cast<uint64_t>(
      kBeginNs + std::min(std::max(time_ns, kBefore), kMostNs));
  if (columns_.kind_size() == 0) t0_ns_ = at;
  t1_ns_ = at;
  columns_.add_start_ns(at);
  columns_.add_kind(static_cast<uint32_t>(kind));
  columns_.add_bytes(fields.bytes);
  columns_.add_ptr(fields.address);
  columns_.add_name(fields.name);
  columns_.add_extra(fields.extra);
  columns_.add_stack(fields.stack);
  if (summary_.ops > 0) {
    columns_.add_op(fields.op);
    columns_.add_thread(fields.thread);
  }
  if (fields.duration_ns >= 0) {
    columns_.add_dur_ns(static_cast<uint64_t>(fields.duration_ns));
    columns_.add_stream(fields.stream);
    columns_.add_device(fields.device);
  }
  ++records_;
  return columns_.kind_size() < kChunkRecords ? OkStatus() : FlushChunk();
}

Status RunWriter::Allocation(const MemoryEvent& event) {
  return Record(std::max<int64_t>(event.time_ns, 0), v1::RECORD_KIND_ALLOC,
                {.bytes = event.bytes,
                 .address = event.address,
                 .name = event.name,
                 .stack = event.stack,
                 .extra = event.bytes > 0 ? REPRISE_ALLOC : REPRISE_FREE,
                 .thread = event.thread});
}

Status RunWriter::Add(const OpMark& mark) {
  return Record(std::max<int64_t>(mark.time_ns, 0),
                mark.begins ? v1::RECORD_KIND_OP_BEGIN : v1::RECORD_KIND_OP_END,
                {.name = mark.name, .op = mark.op, .thread = mark.thread});
}

Status RunWriter::Add(const RecordedKernel& kernel) {
  // In chunks of their own, because other records have no duration.
  if (columns_.kind_size() > 0 && columns_.dur_ns_size() == 0) {
    RETURN_IF_ERROR(FlushGroup());
    RETURN_IF_ERROR(FlushChunk());
  }
  return Record(
      std::max<int64_t>(kernel.start_ns, 0), kernel.kind,
      {.name = kernel.name,
       .duration_ns = std::clamp<int64_t>(kernel.duration_ns, 0, kMostNs),
       .stream = kernel.stream,
       .device = kernel.device});
}

Status RunWriter::Add(const RecordedSegment& segment) {
  // The records that came before keep their order.
  RETURN_IF_ERROR(FlushChunk());
  size_t next = 0;
  do {
    v1::MemorySegment& part = *columns_.add_segments();
    part.set_address(segment.address);
    part.set_bytes(segment.bytes);
    part.set_stream(segment.stream);
    part.set_pool(ValidUtf8(segment.pool, 64));
    for (int i = 0; i < kChunkBlocks && next < segment.blocks.size(); ++i) {
      const RecordedBlock& block = segment.blocks[next++];
      part.add_block_bytes(block.bytes);
      part.add_block_state(static_cast<uint32_t>(block.state));
      part.add_block_asked(block.asked_bytes);
      part.add_block_stack(block.stack);
    }
    t0_ns_ = t1_ns_ = static_cast<uint64_t>(kBeginNs);
    RETURN_IF_ERROR(FlushChunk());
  } while (next < segment.blocks.size());
  return OkStatus();
}

Status RunWriter::Add(const MemoryEvent& event) {
  if (group_ == 1) return Allocation(event);
  sum_ += event.bytes;
  if (in_group_ == 0 || sum_ < low_) {
    low_ = sum_;
    low_at_ = event.time_ns;
  }
  if (in_group_ == 0 || sum_ > high_) {
    high_ = sum_;
    high_at_ = event.time_ns;
  }
  last_at_ = event.time_ns;
  return ++in_group_ < group_ ? OkStatus() : FlushGroup();
}

Status RunWriter::FlushGroup() {
  if (in_group_ == 0) return OkStatus();
  in_group_ = 0;
  const auto go_to = [&](int64_t at, int64_t level) -> Status {
    if (level == drawn_) return OkStatus();
    const int64_t change = level - std::exchange(drawn_, level);
    return Allocation({.time_ns = at, .bytes = change});
  };
  const bool low_first = low_at_ <= high_at_;
  RETURN_IF_ERROR(
      go_to(low_first ? low_at_ : high_at_, low_first ? low_ : high_));
  RETURN_IF_ERROR(
      go_to(low_first ? high_at_ : low_at_, low_first ? high_ : low_));
  return go_to(last_at_, sum_);
}

Status RunWriter::SendNames() {
  v1::Up up;
  const std::vector<std::string>& texts = names_.texts();
  for (; names_sent_ < texts.size(); ++names_sent_) {
    v1::NameDef& name = *up.mutable_defs()->add_names();
    name.set_id(static_cast<uint32_t>(names_sent_ + 1));
    name.set_text(texts[names_sent_]);
    if (up.defs().names_size() == 1024) {
      RETURN_IF_ERROR(send_(up));
      up.Clear();
    }
  }
  return up.has_defs() ? send_(up) : OkStatus();
}

Status RunWriter::FlushChunk() {
  if (columns_.kind_size() == 0 && columns_.steps_size() == 0 &&
      columns_.segments_size() == 0) {
    return OkStatus();
  }
  RETURN_IF_ERROR(SendNames());
  v1::Up up;
  v1::Chunk& chunk = *up.mutable_chunk();
  chunk.set_seq(++seq_);
  chunk.set_t0_ns(t0_ns_);
  chunk.set_t1_ns(t1_ns_);
  chunk.set_count(static_cast<uint32_t>(columns_.kind_size()));
  *chunk.mutable_body() = columns_.SerializeAsString();
  chunk.set_crc32c(Crc32c(chunk.body()));
  columns_.Clear();
  return send_(up);
}

Status RunWriter::End(int64_t step_ns) {
  RETURN_IF_ERROR(FlushGroup());
  RETURN_IF_ERROR(FlushChunk());
  step_ns = std::min(std::max<int64_t>(step_ns, 1), kMostNs);
  v1::StepReport& report = *columns_.add_steps();
  report.set_step(1);
  report.set_step_ns(step_ns);
  report.set_peak_bytes(std::max<int64_t>(summary_.peak_bytes, 0));
  report.set_reserved_bytes(std::max<int64_t>(summary_.reserved_bytes, 0));
  report.set_window(true);
  report.set_end_ns(kBeginNs + step_ns);
  t0_ns_ = t1_ns_ = static_cast<uint64_t>(kBeginNs + step_ns);
  RETURN_IF_ERROR(FlushChunk());
  return SayBye();
}

Status RunWriter::SayBye() {
  v1::Up up;
  up.mutable_bye()->set_pushed(records_);
  return send_(up);
}

}  // namespace reprise::formats
