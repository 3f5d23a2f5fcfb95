// SPDX-License-Identifier: Apache-2.0
#include <string_view>

#include "base/str_cat.h"
#include "server/service/runs/verdict.h"

namespace reprise::server {

namespace {

constexpr int32_t kSignalBase = 128;

bool Died(const v1::Run& run) {
  return run.state() == v1::RUN_STATE_KILLED ||
         run.state() == v1::RUN_STATE_FAILED;
}

bool Broken(const v1::Verdict& verdict) {
  return verdict.gradients_differing() > 0 || verdict.checks_differing() > 0 ||
         verdict.mismatches() > 0 || !verdict.withdrawn().empty() ||
         !verdict.refused().empty() || verdict.over_budget_steps() > 0 ||
         (verdict.planned_steps() > 0 &&
          verdict.measured_peak_bytes() > verdict.budget_bytes());
}

v1::Standing StandingOf(const v1::Run& run) {
  if (!run.imported().empty() && run.plan_id().empty()) {
    return v1::STANDING_IMPORTED;
  }
  if (Died(run)) return v1::STANDING_DIED;
  const bool running = run.state() == v1::RUN_STATE_RUNNING;
  const v1::Verdict& verdict = run.verdict();
  if (run.plan_id().empty()) {
    return running ? v1::STANDING_WAITING : v1::STANDING_UNPLANNED;
  }
  if (!verdict.feasible()) return v1::STANDING_IMPOSSIBLE;
  if (verdict.validated()) return v1::STANDING_VALIDATED;
  if (Broken(verdict)) return v1::STANDING_NOT_HELD;
  return running ? v1::STANDING_MEASURING : v1::STANDING_UNPROVEN;
}

bool RanOutOfMemory(std::string_view failure) {
  for (const std::string_view sign :
       {"out of memory", "OutOfMemory", "Out of memory", "MemoryError",
        "t allocate memory"}) {
    if (failure.find(sign) != std::string_view::npos) return true;
  }
  return false;
}

std::string EndingOf(const v1::Run& run) {
  const v1::ProcessEnd& end = run.process_end();
  const int32_t code = run.has_process_end() ? end.exit_code() : 0;
  const int32_t signal = end.signal() > 0     ? end.signal()
                         : code > kSignalBase ? code - kSignalBase
                                              : 0;
  switch (run.state()) {
    case v1::RUN_STATE_RUNNING:
      return "running";
    case v1::RUN_STATE_KILLED:
      return signal > 0 ? StrCat("killed by signal ", signal) : "killed";
    case v1::RUN_STATE_FAILED:
      if (RanOutOfMemory(run.verdict().failure())) return "out of memory";
      if (end.signal() > 0) return StrCat("killed by signal ", signal);
      return code != 0 ? StrCat("failed with exit code ", code) : "failed";
    default:
      break;
  }
  if (!run.imported().empty()) return "imported";
  if (!run.plan_id().empty() && !run.verdict().feasible()) {
    return run.verdict().unplanned_steps() > 0 ? "refused, trained on"
                                               : "refused";
  }
  return "finished";
}

}  // namespace

void Describe(v1::Run& run) {
  run.set_standing(StandingOf(run));
  run.set_ending(EndingOf(run));
}

}  // namespace reprise::server
