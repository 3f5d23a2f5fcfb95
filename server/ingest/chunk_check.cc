// SPDX-License-Identifier: Apache-2.0
#include "server/ingest/chunk_check.h"

#include <limits>

#include "base/crc32c.h"
#include "base/str_cat.h"
#include "profiler/include/reprise_wire.h"
#include "server/store/session_rows.h"

namespace reprise::server {

namespace {

constexpr int kMaxLabels = 64;
constexpr int kMaxCapabilities = 64;
constexpr size_t kMaxLabelBytes = 1024;
constexpr int kMaxMoments = 8;
constexpr int kMaxMomentStorages = 1024;
constexpr int kMaxSegments = 4096;
constexpr int kMaxBlocks = 16'384;
// SQLite's integers are signed; no real step or time is larger.
constexpr uint64_t kMaxNumber =
    static_cast<uint64_t>(std::numeric_limits<int64_t>::max());

Status CheckText(std::string_view field, const std::string& text, size_t most) {
  if (text.size() <= most) return OkStatus();
  return InvalidArgument(
      StrCat(field, ": at most ", most, " bytes, got ", text.size()));
}

Status CheckNumber(std::string_view field, uint64_t value,
                   uint64_t most = kMaxNumber) {
  if (value <= most) return OkStatus();
  return InvalidArgument(StrCat(field, ": at most ", most, ", got ", value));
}

template <typename List>
Status CheckCount(std::string_view field, const List& list, int most) {
  return CheckNumber(field, static_cast<uint64_t>(list.size()),
                     static_cast<uint64_t>(most));
}

Status CheckNotNegative(std::string_view field, int64_t value) {
  if (value >= 0) return OkStatus();
  return InvalidArgument(StrCat(field, ": must not be negative, got ", value));
}

// Accepts an empty id, or 16 lower-case hex digits.
Status CheckPlanId(std::string_view field, std::string_view id) {
  bool good = id.empty() || id.size() == 16;
  for (const char c : id) {
    good = good && ((c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'));
  }
  if (good) return OkStatus();
  return InvalidArgument(StrCat(field, ": must be 16 hex digits or empty"));
}

Status CheckSteps(const v1::Columns& columns) {
  for (int i = 0; i < columns.steps_size(); ++i) {
    const v1::StepReport& report = columns.steps(i);
    const std::string at = StrCat("columns.steps[", i, "].");
    RETURN_IF_ERROR(CheckNumber(at + "step", report.step()));
    RETURN_IF_ERROR(CheckPlanId(at + "plan_id", report.plan_id()));
    RETURN_IF_ERROR(CheckNotNegative(at + "step_ns", report.step_ns()));
    RETURN_IF_ERROR(CheckNotNegative(at + "peak_bytes", report.peak_bytes()));
    RETURN_IF_ERROR(
        CheckNotNegative(at + "reserved_bytes", report.reserved_bytes()));
    RETURN_IF_ERROR(
        CheckNotNegative(at + "device_bytes", report.device_bytes()));
  }
  return OkStatus();
}

Status CheckOtherReports(const v1::Columns& columns) {
  for (int i = 0; i < columns.checks_size(); ++i) {
    const v1::VerifyReport& report = columns.checks(i);
    const std::string at = StrCat("columns.checks[", i, "].");
    RETURN_IF_ERROR(CheckNumber(at + "step", report.step()));
    RETURN_IF_ERROR(CheckPlanId(at + "plan_id", report.plan_id()));
    RETURN_IF_ERROR(
        CheckText(at + "first_name", report.first_name(), kMaxNameBytes));
    if (report.differing() > report.checked()) {
      return InvalidArgument(StrCat(at, "differing: ", report.differing(),
                                    " of ", report.checked(), " checked"));
    }
  }
  for (int i = 0; i < columns.states_size(); ++i) {
    const v1::PlanState& state = columns.states(i);
    const std::string at = StrCat("columns.states[", i, "].");
    RETURN_IF_ERROR(CheckPlanId(at + "plan_id", state.plan_id()));
    RETURN_IF_ERROR(CheckText(at + "why", state.why(), kMaxNameBytes));
    RETURN_IF_ERROR(CheckNotNegative(at + "own_ns", state.own_ns()));
    RETURN_IF_ERROR(CheckNotNegative(at + "peak_bytes", state.peak_bytes()));
    if (state.state() < REPRISE_PLAN_APPLIED ||
        state.state() > REPRISE_PLAN_OTHER_LOAD) {
      return InvalidArgument(StrCat(at, "state: must be 1 to ",
                                    REPRISE_PLAN_OTHER_LOAD, ", got ",
                                    state.state()));
    }
  }
  return OkStatus();
}

Status CheckMoment(const std::string& at, const v1::Moment& moment) {
  if (moment.reason() != v1::MOMENT_REASON_KILLED &&
      moment.reason() != v1::MOMENT_REASON_OUT_OF_MEMORY) {
    return InvalidArgument(at + "reason: must be killed or out of memory");
  }
  RETURN_IF_ERROR(CheckNumber(at + "step", moment.step()));
  RETURN_IF_ERROR(CheckNotNegative(at + "at_ns", moment.at_ns()));
  RETURN_IF_ERROR(CheckPlanId(at + "graph_id", moment.graph_id()));
  RETURN_IF_ERROR(CheckPlanId(at + "plan_id", moment.plan_id()));
  RETURN_IF_ERROR(CheckNotNegative(at + "live_bytes", moment.live_bytes()));
  RETURN_IF_ERROR(CheckNotNegative(at + "more_bytes", moment.more_bytes()));
  RETURN_IF_ERROR(CheckNumber(at + "more_storages", moment.more_storages()));
  RETURN_IF_ERROR(CheckNotNegative(at + "asked_bytes", moment.asked_bytes()));
  RETURN_IF_ERROR(CheckText(at + "module", moment.module(), kMaxNameBytes));
  RETURN_IF_ERROR(
      CheckCount(at + "storages", moment.storages(), kMaxMomentStorages));
  for (const v1::HeldStorage& held : moment.storages()) {
    RETURN_IF_ERROR(CheckNotNegative(at + "storages.bytes", held.bytes()));
    RETURN_IF_ERROR(
        CheckText(at + "storages.made_by", held.made_by(), kMaxNameBytes));
    RETURN_IF_ERROR(
        CheckText(at + "storages.module", held.module(), kMaxNameBytes));
    RETURN_IF_ERROR(
        CheckText(at + "storages.name", held.name(), kMaxNameBytes));
  }
  return OkStatus();
}

Status CheckMoments(const v1::Columns& columns) {
  RETURN_IF_ERROR(
      CheckCount("columns.moments", columns.moments(), kMaxMoments));
  for (int i = 0; i < columns.moments_size(); ++i) {
    RETURN_IF_ERROR(
        CheckMoment(StrCat("columns.moments[", i, "]."), columns.moments(i)));
  }
  return OkStatus();
}

// Blocks cover their segment, or the first part of it.
Status CheckSegments(const v1::Columns& columns) {
  RETURN_IF_ERROR(
      CheckCount("columns.segments", columns.segments(), kMaxSegments));
  int blocks = 0;
  for (int i = 0; i < columns.segments_size(); ++i) {
    const v1::MemorySegment& segment = columns.segments(i);
    const std::string at = StrCat("columns.segments[", i, "].");
    RETURN_IF_ERROR(CheckNotNegative(at + "bytes", segment.bytes()));
    RETURN_IF_ERROR(CheckText(at + "pool", segment.pool(), kMaxLabelBytes));
    const int count = segment.block_bytes_size();
    blocks += count;
    if (segment.block_state_size() != count ||
        segment.block_asked_size() != count ||
        segment.block_stack_size() != count || blocks > kMaxBlocks) {
      return InvalidArgument(StrCat(at,
                                    "block_bytes: every column of a block has "
                                    "as many values, and a chunk at most ",
                                    kMaxBlocks, " blocks"));
    }
    int64_t left = segment.bytes();
    for (int b = 0; b < count; ++b) {
      if (segment.block_bytes(b) < 0 || segment.block_bytes(b) > left ||
          segment.block_asked(b) < 0) {
        return InvalidArgument(
            StrCat(at, "block_bytes[", b, "]: does not fit into the segment"));
      }
      left -= segment.block_bytes(b);
    }
  }
  return OkStatus();
}

Status CheckSize(std::string_view name, int size, uint32_t count) {
  if (size == 0 || static_cast<uint32_t>(size) == count) return OkStatus();
  return InvalidArgument(StrCat("columns.", name, ": must be empty or have ",
                                count, " values, got ", size));
}

Status CheckColumns(const v1::Columns& columns, uint32_t count) {
  RETURN_IF_ERROR(CheckSize("start_ns", columns.start_ns_size(), count));
  RETURN_IF_ERROR(CheckSize("dur_ns", columns.dur_ns_size(), count));
  RETURN_IF_ERROR(CheckSize("kind", columns.kind_size(), count));
  RETURN_IF_ERROR(CheckSize("op", columns.op_size(), count));
  RETURN_IF_ERROR(CheckSize("name", columns.name_size(), count));
  RETURN_IF_ERROR(CheckSize("stream", columns.stream_size(), count));
  RETURN_IF_ERROR(CheckSize("device", columns.device_size(), count));
  RETURN_IF_ERROR(CheckSize("bytes", columns.bytes_size(), count));
  RETURN_IF_ERROR(CheckSize("ptr", columns.ptr_size(), count));
  RETURN_IF_ERROR(CheckSize("corr", columns.corr_size(), count));
  RETURN_IF_ERROR(CheckSize("thread", columns.thread_size(), count));
  RETURN_IF_ERROR(CheckSize("extra", columns.extra_size(), count));
  RETURN_IF_ERROR(CheckSize("graph", columns.graph_size(), count));
  RETURN_IF_ERROR(CheckSize("stack", columns.stack_size(), count));
  for (int i = 0; i < columns.kind_size(); ++i) {
    if (!v1::RecordKind_IsValid(static_cast<int>(columns.kind(i))) ||
        columns.kind(i) == v1::RECORD_KIND_UNSPECIFIED) {
      return InvalidArgument(StrCat("columns.kind[", i, "]: ", columns.kind(i),
                                    " is no kind of record"));
    }
  }
  return OkStatus();
}

}  // namespace

Status CheckHello(const v1::Hello& hello) {
  if (hello.proto_version() < kProtoVersion ||
      hello.min_version() > kProtoVersion) {
    return FailedPrecondition(
        StrCat("hello.proto_version: the sender speaks ", hello.min_version(),
               " to ", hello.proto_version(), ", this server ", kProtoVersion,
               "; use agent and server of one release"));
  }
  RETURN_IF_ERROR(CheckIdentifier("hello.session_id", hello.session_id()));
  RETURN_IF_ERROR(CheckIdentifier("hello.run_id", hello.run_id()));
  RETURN_IF_ERROR(CheckNumber("hello.producer_epoch", hello.producer_epoch()));
  const v1::SessionInfo& info = hello.info();
  RETURN_IF_ERROR(CheckText("hello.info.host", info.host(), 256));
  RETURN_IF_ERROR(CheckText("hello.info.boot_id", info.boot_id(), 64));
  RETURN_IF_ERROR(
      CheckNumber("hello.info.pid_start_ticks", info.pid_start_ticks()));
  RETURN_IF_ERROR(CheckCount("hello.info.labels", info.labels(), kMaxLabels));
  for (const auto& [key, value] : info.labels()) {
    RETURN_IF_ERROR(CheckText("hello.info.labels", key, kMaxLabelBytes));
    RETURN_IF_ERROR(CheckText("hello.info.labels", value, kMaxLabelBytes));
  }
  return OkStatus();
}

StatusOr<v1::Columns> CheckChunk(const v1::Chunk& chunk) {
  if (chunk.seq() == 0) return InvalidArgument("chunk.seq: starts at 1");
  RETURN_IF_ERROR(CheckNumber("chunk.seq", chunk.seq()));
  RETURN_IF_ERROR(CheckNumber("chunk.t0_ns", chunk.t0_ns()));
  RETURN_IF_ERROR(CheckNumber("chunk.t1_ns", chunk.t1_ns()));
  RETURN_IF_ERROR(CheckNumber("chunk.dropped_before", chunk.dropped_before()));
  RETURN_IF_ERROR(CheckText("chunk.body", chunk.body(), kMaxChunkBytes));
  RETURN_IF_ERROR(CheckNumber("chunk.count", chunk.count(), kMaxChunkRecords));
  if (chunk.layout() != 0) {
    return InvalidArgument(
        StrCat("chunk.layout: this server reads 0, got ", chunk.layout()));
  }
  if (Crc32c(chunk.body()) != chunk.crc32c()) {
    return InvalidArgument(
        StrCat("chunk.crc32c: chunk ", chunk.seq(), " was damaged on its way"));
  }
  v1::Columns columns;
  if (!columns.ParseFromString(chunk.body())) {
    return InvalidArgument("chunk.body: is not a serialized Columns");
  }
  RETURN_IF_ERROR(CheckColumns(columns, chunk.count()));
  const int reports = columns.steps_size() + columns.checks_size() +
                      columns.states_size() + columns.moments_size() +
                      columns.segments_size();
  if (chunk.count() == 0 && reports == 0) {
    return InvalidArgument("chunk.count: a chunk holds 1 to 4096 records");
  }
  RETURN_IF_ERROR(CheckSteps(columns));
  RETURN_IF_ERROR(CheckOtherReports(columns));
  RETURN_IF_ERROR(CheckMoments(columns));
  RETURN_IF_ERROR(CheckSegments(columns));
  return columns;
}

Status CheckDefs(const v1::Defs& defs) {
  for (const v1::NameDef& name : defs.names()) {
    RETURN_IF_ERROR(CheckText("defs.names.text", name.text(), kMaxNameBytes));
  }
  return OkStatus();
}

Status CheckCaps(const v1::Caps& caps) {
  RETURN_IF_ERROR(
      CheckCount("caps.capabilities", caps.capabilities(), kMaxCapabilities));
  for (const v1::Capability& one : caps.capabilities()) {
    RETURN_IF_ERROR(
        CheckText("caps.capabilities.name", one.name(), kMaxLabelBytes));
    RETURN_IF_ERROR(
        CheckText("caps.capabilities.value", one.value(), kMaxLabelBytes));
    RETURN_IF_ERROR(
        CheckText("caps.capabilities.why", one.why(), kMaxNameBytes));
  }
  return OkStatus();
}

Status CheckLost(const v1::Lost& lost) {
  RETURN_IF_ERROR(CheckNumber("lost.to", lost.to()));
  if (lost.from() == 0 || lost.from() > lost.to()) {
    return InvalidArgument(StrCat("lost: from ", lost.from(), " to ", lost.to(),
                                  " is no range of chunks"));
  }
  return CheckText("lost.reason", lost.reason(), kMaxNameBytes);
}

}  // namespace reprise::server
