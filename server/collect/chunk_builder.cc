// SPDX-License-Identifier: Apache-2.0
#include "server/collect/chunk_builder.h"

#include <algorithm>
#include <optional>

#include "base/str_cat.h"
#include "formats/convert/digest.h"
#include "profiler/include/reprise_wire.h"
#include "reprise/v1/ingest.pb.h"
#include "server/collect/columns_writer.h"

namespace reprise::server {

namespace {

constexpr size_t kMaxNameBytes = 512;

std::string PlanIdText(uint64_t id) {
  return id == 0 ? "" : formats::HexId(id);
}

class Builder {
 public:
  explicit Builder(const BuildInput& input) : input_(input) {
    built_.pending.assign(input.pending.begin(), input.pending.end());
  }

  Built Build() {
    for (const reprise_slot& raw : input_.records) {
      reprise_slot copy;
      const reprise_slot* slot =
          OnClock(raw, input_.realtime_to_monotonic_ns, copy);
      if (slot == nullptr) {
        ++built_.malformed;
      } else if (!Take(*slot)) {
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
    for (const v1::Moment& moment : input_.moments) {
      *writer_.reports().add_moments() = moment;
      writer_.AddedReport(static_cast<uint64_t>(moment.at_ns()));
      built_.chunks.push_back(writer_.Finish());
    }
    return std::move(built_);
  }

 private:
  // Returns false if the record must wait for a name.
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
    const bool launched = slot.kind == REPRISE_RECORD_KERNEL ||
                          slot.kind == REPRISE_RECORD_COPY ||
                          slot.kind == REPRISE_RECORD_SET;
    if (launched && input_.join != nullptr) {
      row.op = input_.join->OpOf(slot.body.kernel.correlation);
    }
    if (slot.kind == REPRISE_RECORD_LOSS) {
      writer_.AddDropped(slot.body.loss.count);
      built_.dropped =
          std::min(built_.dropped + slot.body.loss.count, kLargestValue);
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
    ++built_.malformed;  // its STEP_DONE was dropped or never sent
  }

  void EmitStep(size_t index, const reprise_body_step_mem* mem) {
    const reprise_slot slot = built_.pending[index];
    built_.pending.erase(built_.pending.begin() +
                         static_cast<std::ptrdiff_t>(index));
    const auto& done = slot.body.step_done;
    v1::StepReport& report = *writer_.reports().add_steps();
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
    v1::VerifyReport& report = *writer_.reports().add_checks();
    report.set_step(verify.step);
    report.set_plan_id(PlanIdText(verify.plan_id));
    report.set_checked(verify.checked);
    report.set_differing(verify.differing);
    report.set_bitwise((verify.flags & REPRISE_VERIFY_BITWISE) != 0);
    report.set_within_noise((verify.flags & REPRISE_VERIFY_WITHIN_NOISE) != 0);
    report.set_failed((verify.flags & REPRISE_VERIFY_FAILED) != 0);
    report.set_values((verify.flags & REPRISE_VERIFY_VALUES) != 0);
    report.set_first_name(*name);
    report.set_at_ns(static_cast<int64_t>(slot.ts_ns));
    writer_.AddedReport(slot.ts_ns);
    return true;
  }

  bool TakePlanState(const reprise_slot& slot) {
    const auto& state = slot.body.plan_state;
    if (state.state < REPRISE_PLAN_APPLIED ||
        state.state > REPRISE_PLAN_OTHER_LOAD ||
        !Fits({state.own_ns, state.peak_bytes})) {
      ++built_.malformed;
      return true;
    }
    const std::optional<std::string> why = Name(state.why_name);
    if (!why) return false;
    v1::PlanState& report = *writer_.reports().add_states();
    report.set_plan_id(PlanIdText(state.plan_id));
    report.set_state(state.state);
    report.set_why(*why);
    report.set_own_ns(static_cast<int64_t>(state.own_ns));
    report.set_peak_bytes(static_cast<int64_t>(state.peak_bytes));
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

const reprise_slot* OnClock(const reprise_slot& slot,
                            int64_t realtime_to_monotonic_ns,
                            reprise_slot& copy) {
  if (slot.ts_ns > kLargestValue) return nullptr;
  if (slot.clock_id == REPRISE_CLOCK_MONOTONIC) return &slot;
  if (slot.clock_id != REPRISE_CLOCK_REALTIME) return nullptr;
  const int64_t ts =
      static_cast<int64_t>(slot.ts_ns) + realtime_to_monotonic_ns;
  copy = slot;
  copy.ts_ns = ts < 0 ? 0 : static_cast<uint64_t>(ts);
  return &copy;
}

Built BuildChunks(const BuildInput& input) { return Builder(input).Build(); }

}  // namespace reprise::server
