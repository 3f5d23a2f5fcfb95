// SPDX-License-Identifier: Apache-2.0
#include "formats/convert/sentence.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/str_cat.h"

namespace reprise::formats {
namespace {

std::string Count(int64_t count, std::string_view what) {
  return StrCat(count, " ", what, count == 1 ? "" : "s");
}

std::string WithoutStop(std::string text) {
  while (text.ends_with('.')) text.pop_back();
  return text;
}

// Added to claims of the search that no certificate proves.
constexpr char kUnchecked[] = " by the solver's word, not checked";

// What a sentence predicts, and the step that its percentages are of.
struct Prediction {
  int64_t peak_bytes = 0;
  int64_t base_step_ns = 0;
  int64_t step_ns = 0;
};

// Added where the graph is not the step itself.
std::string Estimated(const v1::Plan& plan) {
  return plan.inferred().empty()
             ? ""
             : StrCat(" (an estimate: ", plan.inferred(), ")");
}

std::string Optimality(const v1::Plan& plan, int64_t base_step_ns) {
  if (!plan.inferred().empty()) return "not proven of the step";
  if (plan.proven_optimal()) return "proven optimal";
  const bool checked = plan.bound_proof() != v1::BOUND_PROOF_SOLVER;
  // Optimal up to the solver's tolerance.
  if (!checked &&
      plan.overhead() - plan.bound() <= plan.overhead() * 2e-6 + 1e-8) {
    return StrCat("optimal", kUnchecked);
  }
  // Of the step that the sentence names, which may be another than the sum of
  // the ops. Rounded up, so that "at most" is true; the epsilon keeps 0.8 % from
  // becoming 0.9.
  const double of_base = plan.base_time_ns() > 0 && base_step_ns > 0
                             ? static_cast<double>(plan.base_time_ns()) /
                                   static_cast<double>(base_step_ns)
                             : 1;
  const double gap = std::max(0.0, plan.overhead() - plan.bound()) * of_base;
  const double shown = std::max(1.0, std::ceil(gap * 1000 - 1e-6)) / 1000;
  return StrCat("at most ", FormatPercent(shown), " above optimal",
                checked ? "" : kUnchecked);
}

std::string DifferencePercent(int64_t measured, int64_t predicted) {
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
    return StrCat(
        plan.inferred().empty() ? "Nothing fits in "
                                : "Of the step as inferred, nothing fits in ",
        text.budget, ": ", BlockingOp(why), " needs at least ", text.needed,
        HeldBack(plan.certificate().reserve_bytes()),
        plan.bound_proof() == v1::BOUND_PROOF_SOLVER ? kUnchecked : "",
        Estimated(plan), ".", SmallestKnown(why));
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
  return StrCat(sentence, Estimated(plan), ".");
}

std::string Fits(const v1::Plan& plan, const Prediction& predicted) {
  const bool as_it_is = RecomputesNothing(plan);
  std::string text = StrCat("It fits in ", FormatBytes(plan.budget_bytes()));
  if (as_it_is) text += " as it is: nothing is recomputed";
  text += StrCat(".  Peak ", FormatBytes(predicted.peak_bytes));
  if (!as_it_is) {
    text += StrCat(" (was ", FormatBytes(plan.base_peak_bytes()), ")");
  }
  text += StrCat("   Step ", FormatDuration(predicted.step_ns));
  const std::string added =
      DifferencePercent(predicted.step_ns, predicted.base_step_ns);
  if (!added.empty()) text += StrCat(" (", added, ")");
  if (!as_it_is) text += "   " + Optimality(plan, predicted.base_step_ns);
  if (plan.has_link()) {
    const v1::Link& link = plan.link();
    text +=
        StrCat("   On the host ", FormatBytes(plan.host_peak_bytes()),
               ", with copies at most ", FormatBytes(link.out_bytes_per_s()),
               "/s out and ", FormatBytes(link.in_bytes_per_s()), "/s in");
  }
  return text + Estimated(plan);
}

// "gradients bit for bit equal in 3 checks"
std::string Checks(const v1::Verdict& verdict) {
  const uint32_t values = verdict.value_checks();
  const uint32_t gradients = verdict.checks() - values;
  if (verdict.checks() == 0) {
    const std::string why = WithoutStop(verdict.unchecked());
    return StrCat("not checked yet", why.empty() ? "" : ": ", why);
  }
  if (verdict.checks_differing() > 0) {
    const uint32_t differing = verdict.value_checks_differing();
    const char* const what = differing == 0 ? "gradients"
                             : differing == verdict.checks_differing()
                                 ? "values made again"
                                 : "gradients and values made again";
    return StrCat(what, " differ in ", verdict.checks_differing(), " of ",
                  Count(verdict.checks(), "check"));
  }
  if (gradients == 0) {
    return StrCat("values made again bit for bit equal in ",
                  Count(values, "check"));
  }
  std::string text =
      StrCat("gradients bit for bit equal in ", Count(gradients, "check"));
  if (values > 0) {
    text += StrCat(", values made again in ", Count(values, "check"));
  }
  return text;
}

std::string Measured(const v1::Plan& plan, const v1::Verdict& verdict) {
  std::string text;
  const auto add = [&text](const std::string& figure,
                           const std::string& difference) {
    text += StrCat(text.empty() ? ".  Measured " : ", ", figure);
    if (!difference.empty()) text += " (" + difference + ")";
  };
  if (const int64_t peak = verdict.measured_peak_bytes(); peak > 0) {
    add(FormatBytes(peak),
        DifferencePercent(peak, verdict.predicted_peak_bytes()));
  }
  if (const int64_t step = verdict.measured_step_ns(); step > 0) {
    add(FormatDuration(step),
        verdict.other_load().empty()
            ? DifferencePercent(step, verdict.predicted_step_ns())
            : StrCat("time not comparable: ",
                     WithoutStop(verdict.other_load())));
  }
  if (text.empty()) text = ".  Not measured";  // not the plan's inputs
  // That no value differs says nothing where none was made again.
  const bool compared = verdict.checks() > verdict.value_checks() ||
                        verdict.checks_differing() > 0;
  if (RecomputesNothing(plan) && !compared) return text + ".";
  return StrCat(text, ", ", Checks(verdict), ".");
}

// Mentions steps without a plan, which readers could believe to be within the
// budget.
std::string Unplanned(const v1::Plan& plan, const v1::Verdict& verdict,
                      size_t processes) {
  const int64_t peak = verdict.unplanned_peak_bytes();
  const int64_t over = peak - verdict.budget_bytes();
  const bool planned = plan.feasible() && verdict.planned_steps() > 0;
  if (verdict.unplanned_steps() == 0 || (planned && over <= 0)) return "";
  std::string text = StrCat(" ", Count(verdict.unplanned_steps(), "step"));
  if (processes > 1) text += StrCat(" of ", processes, " processes");
  // For comparison with the bytes that a refused step needs, rounded up as
  // well.
  text +=
      StrCat(" ran without ", planned ? "the plan" : "a plan", ", at up to ",
             plan.feasible() ? FormatBytes(peak) : FormatBytesUp(peak));
  if (plan.feasible() && over > 0) {
    text += StrCat(", ", FormatBytes(over), " over the budget");
  }
  return text + ".";
}

std::string Trouble(const v1::Plan& plan, const v1::Verdict& verdict,
                    size_t processes) {
  std::string text;
  if (plan.feasible() && !verdict.refused().empty()) {
    text += StrCat(" It was not run: ", WithoutStop(verdict.refused()), ".");
  }
  if (verdict.over_budget_steps() > 0) {
    text += StrCat(" ", verdict.over_budget_steps(), " of ",
                   Count(verdict.planned_steps(), "planned step"),
                   " exceeded the budget, by up to ",
                   FormatBytes(verdict.over_budget_bytes()), ".");
  }
  if (verdict.mismatches() > 0) {
    text += StrCat(
        " The program left the plan ", Count(verdict.mismatches(), "time"),
        " and kept everything then", verdict.left().empty() ? "" : ": ",
        WithoutStop(verdict.left()), ".");
  }
  if (verdict.kept_since() > 0) {
    text += StrCat(" Every step since step ", verdict.kept_since(),
                   " kept to its plan and its budget.");
  }
  if (!verdict.withdrawn().empty()) {
    text += StrCat(
        " The plan was withdrawn: ", WithoutStop(verdict.withdrawn()), ".");
  }
  const bool died = verdict.state() == v1::RUN_STATE_KILLED ||
                    verdict.state() == v1::RUN_STATE_FAILED;
  // Nothing about earlier steps, if the plan has not been used yet.
  const bool fresh = plan.feasible() && verdict.planned_steps() == 0 &&
                     verdict.refused().empty() && text.empty() && !died;
  if (!fresh) text += Unplanned(plan, verdict, processes);
  if (verdict.state() == v1::RUN_STATE_KILLED) text += " The job was killed.";
  if (verdict.state() == v1::RUN_STATE_FAILED) {
    const std::string why = WithoutStop(verdict.failure());
    text += StrCat(" The job failed", why.empty() ? "" : ": ", why, ".");
  }
  return text;
}

}  // namespace

std::string WhyInferred(const v1::StepGraph& graph) {
  // By the flavour of the step graph. What an adapter made coarser than the step
  // is has another optimum than the step.
  constexpr std::pair<std::string_view, const char*> kInferred[] = {
      {"trace", "which op reads which tensor is inferred"},
      {"eager-shapes", "its step was made from shapes, before it ran"},
      {"jax", "clusters of equations are its ops"},
      {"tf-coarse",
       "loops, conditionals and functions are one op each, or it takes other "
       "bytes than its ops show"},
  };
  for (const auto& [flavour, why] : kInferred) {
    if (graph.flavour() == flavour) return why;
  }
  return "";
}

BytesPair BudgetAndNeeded(int64_t budget, int64_t needed) {
  BytesPair pair{FormatBytes(budget), FormatBytesUp(needed)};
  if (pair.budget != pair.needed) return pair;
  return {StrCat(budget, " bytes"), StrCat(needed, " bytes")};
}

std::string FormatBytesUp(int64_t bytes) {
  if (bytes < 1024) return FormatBytes(bytes);
  int64_t unit = 1024;
  while (unit < (int64_t{1} << 60) && bytes / 1024 >= unit) unit *= 1024;
  // Rounds up to the next tenth of the unit that FormatBytes uses.
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

bool RecomputesNothing(const v1::Plan& plan) {
  return plan.feasible() && plan.recomputed_ops().empty() &&
         plan.host_peak_bytes() == 0 && plan.time_ns() <= plan.base_time_ns();
}

std::string HeldBack(int64_t reserve_bytes) {
  if (reserve_bytes <= 0) return "";
  return StrCat(" with the ", FormatBytesUp(reserve_bytes),
                " that are held back beside the ops");
}

std::string SmallestKnown(const v1::Infeasible& why) {
  const std::string known = FormatBytesUp(why.smallest_known_bytes());
  if (why.smallest_known_bytes() <= 0 ||
      known == FormatBytesUp(why.smallest_budget_bytes())) {
    return "";
  }
  return StrCat(" The smallest plan that is known takes ", known, ".");
}

std::string PlanSentence(const v1::Plan& plan, int64_t measured_step_ns) {
  if (!plan.feasible()) return NoPlan(plan);
  const int64_t base_step_ns =
      measured_step_ns > 0 ? measured_step_ns : plan.base_time_ns();
  return Fits(plan,
              {.peak_bytes = plan.peak_bytes(),
               .base_step_ns = base_step_ns,
               .step_ns = base_step_ns + plan.time_ns() - plan.base_time_ns()});
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
                        size_t processes) {
  std::string sentence = plan.sentence();
  if (plan.plan_id().empty()) {
    sentence = StrCat("No plan: ", WithoutStop(verdict.refused()), ".");
  } else if (plan.feasible()) {
    // What this job's executor adds was not known to the planner.
    sentence = Fits(plan, {.peak_bytes = verdict.predicted_peak_bytes(),
                           .base_step_ns = verdict.base_step_ns(),
                           .step_ns = verdict.predicted_step_ns()});
    if (verdict.planned_steps() > 0) sentence += Measured(plan, verdict);
  }
  std::string more = Trouble(plan, verdict, processes);
  // Without any trouble, only the plan's sentence.
  if (more.empty()) return sentence;
  if (!sentence.ends_with('.')) sentence += ".";
  return sentence + more;
}

}  // namespace reprise::formats
