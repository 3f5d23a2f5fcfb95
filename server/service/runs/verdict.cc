// SPDX-License-Identifier: Apache-2.0
#include "server/service/runs/verdict.h"

#include <algorithm>

#include "base/str_cat.h"
#include "formats/convert/sentence.h"
#include "profiler/include/reprise_wire.h"
#include "server/store/chunk_rows.h"
#include "server/store/plan_rows.h"
#include "server/store/run_rows.h"

namespace reprise::server {

namespace {

int64_t Median(std::vector<int64_t> values) {
  if (values.empty()) return 0;
  const auto middle = values.begin() + static_cast<int64_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  if (values.size() % 2 == 1) return *middle;
  const int64_t below = *std::max_element(values.begin(), middle);
  return below + (*middle - below) / 2;
}

}  // namespace

void VerdictBuilder::Add(const v1::StepReport& step, int64_t budget_bytes,
                         const std::string& session_id) {
  // A step that saved everything after a mismatch counts as a mismatch, even if
  // the executor did not count the ops, or ran it without a plan.
  const uint32_t mismatches =
      step.kept_all() ? std::max(step.mismatches(), 1u) : step.mismatches();
  mismatches_ += mismatches;
  const bool over = budget_bytes > 0 && step.peak_bytes() > budget_bytes;
  const bool kept = step.planned() && mismatches == 0 && !over;
  if (!kept || kept_since_ == 0) kept_since_ = kept ? step.step() : 0;
  if (!step.planned()) {
    ++unplanned_steps_;
    unplanned_in_.insert(session_id);
    unplanned_peak_bytes_ = std::max(unplanned_peak_bytes_, step.peak_bytes());
    return;
  }
  ++planned_steps_;
  if (over) {
    ++over_budget_steps_;
    over_budget_bytes_ =
        std::max(over_budget_bytes_, step.peak_bytes() - budget_bytes);
  }
  if (step.plan_id().empty()) return;  // no plan for this input
  newest_ = step.plan_id();
  Steps& steps = planned_[newest_];
  steps.largest_peak_bytes =
      std::max(steps.largest_peak_bytes, step.peak_bytes());
  if (!step.window() && mismatches == 0) {
    steps.times_ns.emplace_back(step.step(), step.step_ns());
  }
}

void VerdictBuilder::Add(const v1::VerifyReport& check) {
  const bool differs =
      check.failed() || check.differing() > 0 || !check.bitwise();
  checked_steps_.insert(check.step());
  ++checks_;
  value_checks_ += check.values();
  checks_differing_ += differs;
  value_checks_differing_ += differs && check.values();
  if (check.values()) {
    values_checked_ += check.checked();
    return;
  }
  gradients_checked_ += check.checked();
  gradients_differing_ += check.differing();
}

void VerdictBuilder::Add(const v1::PlanState& state) {
  switch (state.state()) {
    case REPRISE_PLAN_APPLIED:
      applied_[state.plan_id()] = {.own_ns = state.own_ns(),
                                   .peak_bytes = state.peak_bytes()};
      break;
    case REPRISE_PLAN_REFUSED:
    case REPRISE_PLAN_NONE:
      refused_[state.plan_id()] = state.why();
      break;
    case REPRISE_PLAN_STOPPED:
      if (!state.why().empty()) withdrawn_ = state.why();
      break;
    case REPRISE_PLAN_UNCHECKED:
      unchecked_ = state.why();
      break;
    case REPRISE_PLAN_LEFT:
      left_ = state.why();
      break;
    case REPRISE_PLAN_OTHER_LOAD:
      other_load_ = state.why();
      break;
    case REPRISE_JOB_FAILED:
      failure_ = state.why();
      break;
    default:
      break;
  }
}

std::vector<int64_t> VerdictBuilder::Times(const Steps& steps) const {
  std::vector<int64_t> times;
  for (const auto& [step, time_ns] : steps.times_ns) {
    if (!checked_steps_.contains(step)) times.push_back(time_ns);
  }
  return times;
}

// Why a plan was refused, if no step ran under it.
std::string VerdictBuilder::Refusal(const std::string& plan_id) const {
  if (planned_steps_ > 0 || applied_.contains(plan_id)) return "";
  const auto found = refused_.find(plan_id);
  if (found != refused_.end()) return found->second;
  const auto none = refused_.find("");
  return none == refused_.end() ? "" : none->second;
}

std::string VerdictBuilder::Failure(v1::RunState state,
                                    int32_t exit_code) const {
  const bool by_code = failure_.empty() && state == v1::RUN_STATE_FAILED;
  return by_code && exit_code != 0 ? StrCat("exit code ", exit_code) : failure_;
}

v1::Verdict VerdictBuilder::WithoutPlan(v1::RunState state,
                                        int32_t exit_code) const {
  v1::Verdict verdict;
  if (state == v1::RUN_STATE_KILLED || state == v1::RUN_STATE_FAILED) {
    verdict.set_failure(Failure(state, exit_code));
  }
  verdict.set_unplanned_steps(unplanned_steps_);
  verdict.set_unplanned_peak_bytes(unplanned_peak_bytes_);
  return verdict;
}

v1::Verdict VerdictBuilder::Build(const v1::Plan& plan,
                                  const v1::StepGraph& graph,
                                  v1::RunState state, int32_t exit_code) const {
  v1::Verdict verdict;
  verdict.set_refused(Refusal(plan.plan_id()));
  if (plan.plan_id().empty() && verdict.refused().empty()) return verdict;
  const bool died =
      state == v1::RUN_STATE_KILLED || state == v1::RUN_STATE_FAILED;
  verdict.set_state(state);
  if (died) verdict.set_failure(Failure(state, exit_code));
  verdict.set_feasible(plan.feasible());
  verdict.set_base_peak_bytes(plan.base_peak_bytes());
  verdict.set_budget_bytes(plan.budget_bytes());
  verdict.set_base_step_ns(graph.measured_step_ns() > 0
                               ? graph.measured_step_ns()
                               : plan.base_time_ns());
  verdict.set_overhead_bound(plan.bound());
  if (plan.feasible()) {
    const auto found = applied_.find(plan.plan_id());
    const Applied as = found == applied_.end() ? Applied{} : found->second;
    verdict.set_predicted_peak_bytes(as.peak_bytes > 0 ? as.peak_bytes
                                                       : plan.peak_bytes());
    verdict.set_predicted_step_ns(verdict.base_step_ns() + plan.time_ns() -
                                  plan.base_time_ns() + as.own_ns);
  }
  if (const auto steps = planned_.find(plan.plan_id());
      steps != planned_.end()) {
    verdict.set_measured_peak_bytes(steps->second.largest_peak_bytes);
    verdict.set_measured_step_ns(Median(Times(steps->second)));
  }
  verdict.set_planned_steps(planned_steps_);
  verdict.set_mismatches(mismatches_);
  verdict.set_over_budget_steps(over_budget_steps_);
  verdict.set_over_budget_bytes(over_budget_bytes_);
  verdict.set_unplanned_steps(unplanned_steps_);
  verdict.set_unplanned_peak_bytes(unplanned_peak_bytes_);
  verdict.set_checks(checks_);
  verdict.set_value_checks(value_checks_);
  verdict.set_checks_differing(checks_differing_);
  verdict.set_value_checks_differing(value_checks_differing_);
  verdict.set_gradients_checked(gradients_checked_);
  verdict.set_gradients_differing(gradients_differing_);
  verdict.set_gradients_equal(gradients_checked_ > 0 &&
                              checks_differing_ == value_checks_differing_);
  verdict.set_values_checked(values_checked_);
  verdict.set_values_equal(values_checked_ > 0 && value_checks_differing_ == 0);
  if (checks_ == 0) verdict.set_unchecked(unchecked_);
  if (mismatches_ > 0) verdict.set_left(left_);
  if (verdict.measured_step_ns() > 0) verdict.set_other_load(other_load_);
  verdict.set_withdrawn(withdrawn_);
  if (withdrawn_.empty() && (over_budget_steps_ > 0 || mismatches_ > 0)) {
    verdict.set_kept_since(kept_since_);
  }
  verdict.set_validated(plan.feasible() && planned_steps_ > 0 &&
                        over_budget_steps_ == 0 && checks_ > 0 &&
                        checks_differing_ == 0 && mismatches_ == 0 &&
                        withdrawn_.empty() && !died);
  verdict.set_sentence(
      formats::RunSentence(plan, verdict, unplanned_in_.size()));
  return verdict;
}

// Whether a plan that reports named before it was stored is stored now.
StatusOr<bool> RunReports::KnowsMorePlans(Database& db) const {
  for (const auto& [plan_id, budget_bytes] : budgets_) {
    if (budget_bytes >= 0) continue;
    const Status found = LoadPlan(db, plan_id).status();
    if (found.ok()) return true;
    if (found.code() != Code::kNotFound) return found;
  }
  return false;
}

Status RunReports::Read(Database& db, const std::string& run_id) {
  // Its steps were not compared with its budget: all is read once more.
  ASSIGN_OR_RETURN(const bool again, KnowsMorePlans(db));
  if (again) *this = RunReports();
  ASSIGN_OR_RETURN(std::vector<StateRow> states,
                   LoadPlanStates(db, run_id, last_state_));
  for (const StateRow& row : states) {
    last_state_ = row.id;
    builder_.Add(row.report);
  }
  ASSIGN_OR_RETURN(std::vector<StepRow> steps,
                   LoadSteps(db, run_id, last_step_));
  for (StepRow& row : steps) {
    last_step_ = row.id;
    ASSIGN_OR_RETURN(const int64_t budget_bytes,
                     BudgetOf(db, row.report.plan_id()));
    builder_.Add(row.report, budget_bytes, row.session_id);
    log_.Add(row.report, row.report.planned() && budget_bytes > 0 &&
                             row.report.peak_bytes() > budget_bytes);
  }
  ASSIGN_OR_RETURN(std::vector<CheckRow> checks,
                   LoadChecks(db, run_id, last_check_));
  for (CheckRow& row : checks) {
    last_check_ = row.id;
    builder_.Add(row.report);
    log_.Add(row.report);
  }
  return OkStatus();
}

StatusOr<int64_t> RunReports::BudgetOf(Database& db,
                                       const std::string& plan_id) {
  if (plan_id.empty()) return int64_t{0};
  if (const auto known = budgets_.find(plan_id); known != budgets_.end()) {
    return known->second;
  }
  // A report may name a plan that this server did not make.
  const StatusOr<PlanRow> row = LoadPlan(db, plan_id);
  if (!row.ok() && row.status().code() != Code::kNotFound) return row.status();
  return budgets_[plan_id] = row.ok() ? row->plan.budget_bytes() : -1;
}

Status RunReports::LoadShown(Database& db, const std::string& plan_id) {
  if (plan_id == plan_.plan_id()) return OkStatus();
  ASSIGN_OR_RETURN(PlanRow row, LoadPlan(db, plan_id));
  // The plan's own graph, which may be older than the run's newest.
  ASSIGN_OR_RETURN(graph_, LoadGraph(db, row.plan.graph_id()));
  plan_ = std::move(row.plan);
  return OkStatus();
}

StatusOr<v1::Verdict> RunReports::Verdict(Database& db, const v1::Run& run) {
  const std::string& under = builder_.plan_id();
  const auto known = budgets_.find(under);
  const bool stored = known != budgets_.end() && known->second > 0;
  const std::string shown = stored ? under : run.plan_id();
  if (!shown.empty()) {
    RETURN_IF_ERROR(LoadShown(db, shown));
  }
  const int32_t code = run.process_end().exit_code();
  v1::Verdict verdict = builder_.Build(plan_, graph_, run.state(), code);
  // Also a run without a plan has an end and a peak.
  if (verdict.sentence().empty()) {
    return builder_.WithoutPlan(run.state(), code);
  }
  return verdict;
}

Status AddVerdict(Database& db, v1::Run& run, std::string* made_of) {
  const std::string& run_id = run.run_id();
  std::optional<v1::Verdict> stored;
  std::string source;
  if (run.state() != v1::RUN_STATE_RUNNING) {
    ASSIGN_OR_RETURN(source, VerdictSource(db, run));
    ASSIGN_OR_RETURN(stored, LoadVerdict(db, run_id, source));
  }
  if (stored) {
    *run.mutable_verdict() = *std::move(stored);
  } else {
    RunReports reports;
    RETURN_IF_ERROR(reports.Read(db, run_id));
    ASSIGN_OR_RETURN(*run.mutable_verdict(), reports.Verdict(db, run));
    if (made_of != nullptr) *made_of = source;
  }
  Describe(run);
  return OkStatus();
}

}  // namespace reprise::server
