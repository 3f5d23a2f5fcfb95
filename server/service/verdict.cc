// SPDX-License-Identifier: Apache-2.0
#include "server/service/verdict.h"

#include <algorithm>

#include "server/convert/sentence.h"
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

void VerdictBuilder::Add(const v1::StepReport& step) {
  if (!step.planned()) return;
  ++planned_steps_;
  // A step that kept everything after a mismatch is one even where the
  // executor did not count the ops.
  mismatches_ +=
      step.kept_all() ? std::max(step.mismatches(), 1u) : step.mismatches();
  largest_peak_bytes_ = std::max(largest_peak_bytes_, step.peak_bytes());
  if (!step.window()) step_times_ns_.push_back(step.step_ns());
}

void VerdictBuilder::Add(const v1::VerifyReport& check) {
  ++checks_;
  value_checks_ += check.values() ? 1 : 0;
  gradients_checked_ += check.checked();
  gradients_differing_ += check.differing();
  if (check.failed() || check.differing() > 0 || !check.bitwise()) {
    ++checks_differing_;
  }
}

v1::Verdict VerdictBuilder::Build(const v1::Plan& plan,
                                  const v1::StepGraph& graph) const {
  v1::Verdict verdict;
  if (plan.plan_id().empty()) return verdict;
  verdict.set_feasible(plan.feasible());
  verdict.set_base_peak_bytes(plan.base_peak_bytes());
  verdict.set_budget_bytes(plan.budget_bytes());
  verdict.set_base_step_ns(graph.measured_step_ns() > 0
                               ? graph.measured_step_ns()
                               : plan.base_time_ns());
  verdict.set_overhead_bound(plan.bound());
  if (plan.feasible()) {
    verdict.set_predicted_peak_bytes(plan.peak_bytes());
    verdict.set_predicted_step_ns(verdict.base_step_ns() + plan.time_ns() -
                                  plan.base_time_ns());
  }
  verdict.set_planned_steps(planned_steps_);
  verdict.set_mismatches(mismatches_);
  verdict.set_measured_peak_bytes(largest_peak_bytes_);
  verdict.set_measured_step_ns(Median(step_times_ns_));
  verdict.set_gradients_checked(gradients_checked_);
  verdict.set_gradients_differing(gradients_differing_);
  verdict.set_value_checks(value_checks_);
  verdict.set_gradients_equal(checks_ > 0 && checks_differing_ == 0);
  verdict.set_validated(plan.feasible() && planned_steps_ > 0 &&
                        largest_peak_bytes_ <= plan.budget_bytes() &&
                        checks_differing_ == 0 && mismatches_ == 0);
  verdict.set_sentence(RunSentence(plan, verdict, checks_, checks_differing_));
  return verdict;
}

StatusOr<Newest> LoadNewest(Database& db, const v1::Run& run) {
  Newest newest;
  if (run.plan_id().empty()) return newest;
  ASSIGN_OR_RETURN(PlanRow row, LoadPlan(db, run.plan_id()));
  newest.plan = std::move(row.plan);
  // Of the plan's graph, which may be older than the run's newest.
  ASSIGN_OR_RETURN(newest.graph, LoadGraph(db, newest.plan.graph_id()));
  return newest;
}

StatusOr<v1::Run> LoadRunWithVerdict(Database& db, const std::string& run_id) {
  ASSIGN_OR_RETURN(v1::Run run, LoadRun(db, run_id));
  ASSIGN_OR_RETURN(const Newest newest, LoadNewest(db, run));
  if (newest.plan.plan_id().empty()) return run;
  VerdictBuilder builder;
  ASSIGN_OR_RETURN(const std::vector<StepRow> steps, LoadSteps(db, run_id, 0));
  for (const StepRow& row : steps) builder.Add(row.report);
  ASSIGN_OR_RETURN(const std::vector<CheckRow> checks,
                   LoadChecks(db, run_id, 0));
  for (const CheckRow& row : checks) builder.Add(row.report);
  *run.mutable_verdict() = builder.Build(newest.plan, newest.graph);
  return run;
}

}  // namespace reprise::server
