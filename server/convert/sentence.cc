// SPDX-License-Identifier: Apache-2.0
#include "server/convert/sentence.h"

#include <algorithm>
#include <cmath>

#include "base/str_cat.h"
#include "base/units.h"

namespace reprise::server {
namespace {

std::string Checks(int64_t count) {
  return StrCat(count, count == 1 ? " check" : " checks");
}

std::string Optimality(const v1::Plan& plan) {
  if (plan.proven_optimal()) return "proven optimal";
  // Up, so that "at most" is true; the epsilon keeps 0.8 % from becoming 0.9.
  const double gap = std::max(0.0, plan.overhead() - plan.bound());
  const double shown = std::max(1.0, std::ceil(gap * 1000 - 1e-6)) / 1000;
  return StrCat("at most ", FormatPercent(shown), " above optimal");
}

std::string Difference(int64_t measured, int64_t predicted) {
  if (predicted <= 0) return "";
  const double fraction =
      static_cast<double>(measured) / static_cast<double>(predicted) - 1;
  return FormatPercent(fraction, /*sign=*/true);
}

// "op 17 aten.bmm.default (layers.3.attn)"
std::string BlockingOp(const v1::Infeasible& why) {
  std::string text = StrCat("op ", why.blocking_op());
  if (!why.blocking_op_name().empty()) text += " " + why.blocking_op_name();
  if (!why.blocking_module().empty()) {
    text += " (" + why.blocking_module() + ")";
  }
  return text;
}

std::string NoPlan(const v1::Plan& plan) {
  const v1::Infeasible& why = plan.infeasible();
  const BytesPair text =
      BudgetAndNeeded(plan.budget_bytes(), why.smallest_budget_bytes());
  if (!Undecided(plan)) {
    return StrCat("Nothing fits in ", text.budget, ": ", BlockingOp(why),
                  " needs at least ", text.needed, ".");
  }
  std::string sentence = StrCat("No plan found for ", text.budget, " yet");
  if (why.smallest_budget_bytes() > 0) {
    sentence += StrCat(": at least ", text.needed, " are needed");
  }
  if (why.smallest_known_bytes() > 0) {
    sentence += StrCat(why.smallest_budget_bytes() > 0 ? "," : ":",
                       " a plan is known for ",
                       FormatBytesUp(why.smallest_known_bytes()));
  }
  return sentence + ".";
}

}  // namespace

BytesPair BudgetAndNeeded(int64_t budget, int64_t needed) {
  BytesPair pair{FormatBytes(budget), FormatBytesUp(needed)};
  if (pair.budget != pair.needed) return pair;
  return {StrCat(budget, " bytes"), StrCat(needed, " bytes")};
}

std::string FormatBytesUp(int64_t bytes) {
  if (bytes < 1024) return FormatBytes(bytes);
  int64_t unit = 1024;
  while (unit < (int64_t{1} << 60) && bytes / 1024 >= unit) unit *= 1024;
  // To the next tenth of the unit that FormatBytes prints in.
  const auto tenths = static_cast<int64_t>(std::ceil(
      static_cast<long double>(bytes) * 10 / static_cast<long double>(unit)));
  const auto up = static_cast<int64_t>(static_cast<long double>(tenths) *
                                       static_cast<long double>(unit) / 10);
  return FormatBytes(std::max(up, bytes));
}

bool Undecided(const v1::Plan& plan) {
  return !plan.feasible() &&
         plan.infeasible().smallest_budget_bytes() <= plan.budget_bytes();
}

std::string PlanSentence(const v1::Plan& plan, int64_t measured_step_ns) {
  if (!plan.feasible()) return NoPlan(plan);
  const int64_t step_ns =
      measured_step_ns > 0
          ? measured_step_ns + (plan.time_ns() - plan.base_time_ns())
          : plan.time_ns();
  return StrCat("It fits in ", FormatBytes(plan.budget_bytes()), ".  Peak ",
                FormatBytes(plan.peak_bytes()), " (was ",
                FormatBytes(plan.base_peak_bytes()), ")   Step ",
                FormatDuration(step_ns), " (",
                FormatPercent(plan.overhead(), /*sign=*/true), ")   ",
                Optimality(plan));
}

std::string StrategySentence(std::string_view strategy, const v1::Plan& plan) {
  const int64_t needed = plan.infeasible().smallest_known_bytes();
  if (needed == 0) {
    return StrCat("The executor cannot run the plan \"", strategy,
                  "\"; the strategy auto finds one that it can.");
  }
  const BytesPair text = BudgetAndNeeded(plan.budget_bytes(), needed);
  return StrCat("The plan \"", strategy, "\" does not fit in ", text.budget,
                ": it needs ", text.needed,
                "; the strategy auto looks for one that fits.");
}

std::string RunSentence(const v1::Plan& plan, const v1::Verdict& verdict,
                        int64_t checks, int64_t checks_differing) {
  std::string sentence = plan.sentence();
  if (!plan.feasible() || verdict.planned_steps() == 0) return sentence;
  const int64_t peak = verdict.measured_peak_bytes();
  sentence += StrCat(".  Measured ", FormatBytes(peak));
  std::string notes = Difference(peak, verdict.predicted_peak_bytes());
  if (peak > verdict.budget_bytes()) {
    notes +=
        StrCat(notes.empty() ? "" : ", ",
               FormatBytes(peak - verdict.budget_bytes()), " over the budget");
  }
  if (!notes.empty()) sentence += " (" + notes + ")";
  if (verdict.measured_step_ns() > 0) {
    sentence += ", " + FormatDuration(verdict.measured_step_ns());
    const std::string slower =
        Difference(verdict.measured_step_ns(), verdict.predicted_step_ns());
    if (!slower.empty()) sentence += " (" + slower + ")";
  }
  const int64_t values = verdict.value_checks();
  const char* const compared = values == 0 ? "gradients"
                               : values < checks
                                   ? "gradients and values made again"
                                   : "values made again";
  if (checks_differing > 0) {
    sentence += StrCat(", ", compared, " differ in ", checks_differing, " of ",
                       Checks(checks), ".");
  } else if (checks > 0) {
    sentence +=
        StrCat(", ", compared, " bit for bit equal in ", Checks(checks), ".");
  } else {
    sentence += ", not checked yet.";
  }
  if (verdict.mismatches() > 0) {
    sentence += StrCat(" The program left the plan ", verdict.mismatches(),
                       verdict.mismatches() == 1 ? " time" : " times",
                       " and kept everything then.");
  }
  return sentence;
}

}  // namespace reprise::server
