// SPDX-License-Identifier: Apache-2.0
#include "server/collect/chunk_builder.h"

#include <algorithm>
#include <cstring>
#include <optional>

#include "base/str_cat.h"
#include "profiler/include/reprise_agent.h"
#include "reprise/v1/ingest.pb.h"
#include "server/collect/crc32c.h"
#include "server/collect/text.h"
#include "server/convert/digest.h"

namespace reprise::server {

namespace {

// SQLite and int64 fields end here; no honest count or time comes close.
constexpr uint64_t kLargest = uint64_t{1} << 62;
constexpr int32_t kMaxDevice = 1023;
constexpr size_t kMaxNameBytes = 512;
// The most a report (its name included) and a row take in a chunk.
constexpr size_t kReportBytes = 700;
constexpr size_t kRecordBytes = 96;
static_assert(kChunkRecords * kRecordBytes < kChunkBytes);

bool Fits(std::initializer_list<uint64_t> values) {
  return std::all_of(values.begin(), values.end(),
                     [](uint64_t v) { return v <= kLargest; });
}

std::string PlanIdText(uint64_t id) { return id == 0 ? "" : HexId(id); }

// One record as the columns hold it.
struct Row {
  uint64_t start_ns = 0, dur_ns = 0, op = 0, stream = 0, ptr = 0, extra = 0;
  int64_t bytes = 0;
  uint32_t kind = 0, name = 0, device = 0, corr = 0, thread = 0;
};

bool FillDevice(int32_t device, Row& row) {
  if (device < -1 || device > kMaxDevice) return false;
  row.device = static_cast<uint32_t>(device);
  return true;
}

// False: malformed. `start_ns` is set already.
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
      return body.alloc.bytes < static_cast<int64_t>(kLargest) &&
             body.alloc.bytes > -static_cast<int64_t>(kLargest) &&
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

// ---- ColumnsWriter: one chunk in the making ----

class ColumnsWriter {
 public:
  void Add(const Row& row) {
    rows_.push_back(row);
    Cover(row.start_ns, row.start_ns + row.dur_ns);
    bytes_ += kRecordBytes;
  }

  // After a report was added to columns().
  void AddedReport(uint64_t at_ns) {
    Cover(at_ns, at_ns);
    bytes_ += kReportBytes;
  }

  v1::Columns& columns() { return columns_; }
  void AddDropped(uint64_t count) {
    dropped_ = std::min(dropped_ + count, kLargest);
  }
  bool empty() const { return !covered_; }
  bool full() const {
    return rows_.size() >= kChunkRecords || bytes_ >= kChunkBytes;
  }

  NewChunk Finish() {
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
    NewChunk chunk{.t0_ns = t0_,
                   .t1_ns = t1_,
                   .count = static_cast<uint32_t>(rows_.size()),
                   .body = columns_.SerializeAsString(),
                   .crc32c = 0,
                   .dropped_before = dropped_};
    chunk.crc32c = ChunkCrc32c(chunk.body);
    *this = ColumnsWriter();
    return chunk;
  }

 private:
  void Cover(uint64_t from, uint64_t to) {
    t0_ = covered_ ? std::min(t0_, from) : from;
    t1_ = std::max(t1_, to);
    covered_ = true;
  }

  // A column of zeros stays empty, unless it is one that always has values.
  template <typename Field, typename Value>
  void Fill(Field* field, Value Row::*member, bool always = false) {
    const bool any = std::any_of(
        rows_.begin(), rows_.end(),
        [member](const Row& row) { return row.*member != Value{}; });
    if (!any && !always) return;
    field->Reserve(static_cast<int>(rows_.size()));
    for (const Row& row : rows_) field->AddAlreadyReserved(row.*member);
  }

  std::vector<Row> rows_;
  v1::Columns columns_;
  uint64_t t0_ = 0, t1_ = 0, dropped_ = 0;
  size_t bytes_ = 0;
  bool covered_ = false;
};

// ---- Builder ----

class Builder {
 public:
  explicit Builder(const BuildInput& input) : input_(input) {
    built_.pending.assign(input.pending.begin(), input.pending.end());
  }

  Built Build() {
    for (const reprise_slot& raw : input_.records) {
      reprise_slot slot = raw;
      if (!FixClock(slot)) {
        ++built_.malformed;
      } else if (!Take(slot)) {
        built_.waits_for_name = true;
        break;
      }
      ++built_.used;
      if (writer_.full()) built_.chunks.push_back(writer_.Finish());
    }
    if (input_.last && built_.used == input_.records.size()) {
      while (!built_.pending.empty()) EmitStep(0, nullptr);
    }
    if (!writer_.empty()) built_.chunks.push_back(writer_.Finish());
    return std::move(built_);
  }

 private:
  bool FixClock(reprise_slot& slot) const {
    if (!Fits({slot.ts_ns})) return false;
    if (slot.clock_id == REPRISE_CLOCK_MONOTONIC) return true;
    if (slot.clock_id != REPRISE_CLOCK_REALTIME) return false;
    const int64_t ts =
        static_cast<int64_t>(slot.ts_ns) + input_.realtime_to_monotonic_ns;
    slot.ts_ns = ts < 0 ? 0 : static_cast<uint64_t>(ts);
    return true;
  }

  // False: must wait for a name.
  bool Take(const reprise_slot& slot) {
    switch (slot.kind) {
      case REPRISE_RECORD_STEP_DONE:
        TakeStepDone(slot);
        return true;
      case REPRISE_RECORD_STEP_MEM:
        TakeStepMem(slot);
        return true;
      case REPRISE_RECORD_VERIFY:
        return TakeVerify(slot);
      case REPRISE_RECORD_PLAN_STATE:
        return TakePlanState(slot);
      default:
        TakeRow(slot);
        return true;
    }
  }

  void TakeRow(const reprise_slot& slot) {
    Row row;
    row.start_ns = slot.ts_ns;
    if (!FillRow(slot, row)) {
      ++built_.malformed;
      return;
    }
    if (slot.kind == REPRISE_RECORD_LOSS) {
      writer_.AddDropped(slot.body.loss.count);
      built_.dropped =
          std::min(built_.dropped + slot.body.loss.count, kLargest);
    }
    writer_.Add(row);
  }

  void TakeStepDone(const reprise_slot& slot) {
    const auto& done = slot.body.step_done;
    if (!Fits({done.step, done.step_ns, done.peak_bytes})) {
      ++built_.malformed;
      return;
    }
    if (built_.pending.size() >= kMaxPending) EmitStep(0, nullptr);
    built_.pending.push_back(slot);
  }

  void TakeStepMem(const reprise_slot& slot) {
    const auto& mem = slot.body.step_mem;
    if (!Fits({mem.step, mem.reserved_bytes, mem.device_bytes})) {
      ++built_.malformed;
      return;
    }
    for (size_t i = built_.pending.size(); i-- > 0;) {
      const reprise_slot& done = built_.pending[i];
      if (done.thread == slot.thread && done.body.step_done.step == mem.step) {
        EmitStep(i, &mem);
        return;
      }
    }
    ++built_.malformed;  // its STEP_DONE was dropped, or never sent
  }

  void EmitStep(size_t index, const reprise_body_step_mem* mem) {
    const reprise_slot slot = built_.pending[index];
    built_.pending.erase(built_.pending.begin() +
                         static_cast<std::ptrdiff_t>(index));
    const auto& done = slot.body.step_done;
    v1::StepReport& report = *writer_.columns().add_steps();
    report.set_step(done.step);
    report.set_plan_id(PlanIdText(done.plan_id));
    report.set_step_ns(static_cast<int64_t>(done.step_ns));
    report.set_peak_bytes(static_cast<int64_t>(done.peak_bytes));
    report.set_mismatches(done.mismatches);
    report.set_planned((done.flags & REPRISE_STEP_PLANNED) != 0);
    report.set_kept_all((done.flags & REPRISE_STEP_KEPT_ALL) != 0);
    report.set_oom((done.flags & REPRISE_STEP_OOM) != 0);
    report.set_window((done.flags & REPRISE_STEP_WINDOW) != 0);
    report.set_incomplete((done.flags & REPRISE_STEP_INCOMPLETE) != 0);
    report.set_end_ns(static_cast<int64_t>(slot.ts_ns));
    if (mem != nullptr) {
      report.set_reserved_bytes(static_cast<int64_t>(mem->reserved_bytes));
      report.set_device_bytes(static_cast<int64_t>(mem->device_bytes));
      report.set_recomputed(mem->recomputed);
    } else {
      report.set_incomplete(true);  // its second half is missing
    }
    writer_.AddedReport(slot.ts_ns);
  }

  bool TakeVerify(const reprise_slot& slot) {
    const auto& verify = slot.body.verify;
    if (!Fits({verify.step}) || verify.differing > verify.checked) {
      ++built_.malformed;
      return true;
    }
    const std::optional<std::string> name = Name(verify.first_name);
    if (!name) return false;
    v1::VerifyReport& report = *writer_.columns().add_checks();
    report.set_step(verify.step);
    report.set_plan_id(PlanIdText(verify.plan_id));
    report.set_checked(verify.checked);
    report.set_differing(verify.differing);
    report.set_bitwise((verify.flags & REPRISE_VERIFY_BITWISE) != 0);
    report.set_within_noise((verify.flags & REPRISE_VERIFY_WITHIN_NOISE) != 0);
    report.set_failed((verify.flags & REPRISE_VERIFY_FAILED) != 0);
    report.set_first_name(*name);
    report.set_at_ns(static_cast<int64_t>(slot.ts_ns));
    writer_.AddedReport(slot.ts_ns);
    return true;
  }

  bool TakePlanState(const reprise_slot& slot) {
    const auto& state = slot.body.plan_state;
    if (state.state < REPRISE_PLAN_APPLIED ||
        state.state > REPRISE_PLAN_STOPPED) {
      ++built_.malformed;
      return true;
    }
    const std::optional<std::string> why = Name(state.why_name);
    if (!why) return false;
    v1::PlanState& report = *writer_.columns().add_states();
    report.set_plan_id(PlanIdText(state.plan_id));
    report.set_state(state.state);
    report.set_why(*why);
    report.set_at_ns(static_cast<int64_t>(slot.ts_ns));
    writer_.AddedReport(slot.ts_ns);
    return true;
  }

  std::optional<std::string> Name(uint32_t id) const {
    if (id == 0) return "";
    const auto found = input_.names->find(id);
    if (found != input_.names->end()) {
      return ValidUtf8(found->second, kMaxNameBytes);
    }
    if (input_.wait_for_names) return std::nullopt;
    return StrCat("name #", id);
  }

  const BuildInput& input_;
  Built built_;
  ColumnsWriter writer_;
};

}  // namespace

Built BuildChunks(const BuildInput& input) { return Builder(input).Build(); }

}  // namespace reprise::server
