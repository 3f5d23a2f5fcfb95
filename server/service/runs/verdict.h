// SPDX-License-Identifier: Apache-2.0
//
// Predicted versus measured: the verdict of a run, from its plan, the graph's
// own measurement, and all reports of its executor.
//
// The Python package computes the same verdict from the same reports, for the
// process that sends them; tests/fixtures/verdicts.json checks both.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/status.h"
#include "reprise/v1/graph.pb.h"
#include "reprise/v1/plan.pb.h"
#include "reprise/v1/query.pb.h"
#include "server/store/database.h"

namespace reprise::server {

// The steps of a run in a compact form, and buckets of them for a screen.
//
//   steps     1 2 3 4 | 5 6 7 8 | 9 10 ...
//   bucket      max        max        ...     peaks; medians of times; counts
//
// Of several ranks the first report of each step counts, as steps come in order.
// 40 bytes a step.
class StepLog {
 public:
  void Add(const v1::StepReport& step, bool over_budget);
  void Add(const v1::VerifyReport& check);

  size_t size() const { return steps_.size(); }

  // Buckets of the steps numbered `from` to `to`, at most `buckets`.
  v1::StepBuckets Fold(uint64_t from, uint64_t to, size_t buckets) const;

 private:
  struct Step {
    uint64_t number = 0;
    int64_t peak_bytes = 0;
    int64_t time_ns = 0;
    uint32_t checks = 0;
    uint32_t differing = 0;
    bool planned = false;
    bool over_budget = false;
    bool out_of_memory = false;
    bool traced = false;
  };

  static bool Representative(const Step& step) {
    return !step.traced && step.checks == 0;
  }
  static void AddBucket(const Step* first, const Step* end,
                        v1::StepBuckets& to);
  static int64_t MedianTime(const Step* first, const Step* end, bool planned);

  std::vector<Step> steps_;
};

// Updated incrementally as reports arrive, so that a watcher does not reread a
// run for every event.
class VerdictBuilder {
 public:
  // Adds a report. `budget_bytes` is that of the step's own plan (0: none or
  // unknown), `session_id` that of the process that ran it.
  void Add(const v1::StepReport& step, int64_t budget_bytes,
           const std::string& session_id = "");
  void Add(const v1::VerifyReport& check);
  void Add(const v1::PlanState& state);

  // The plan of the newest planned step, which the verdict is about. Empty: no
  // step was planned.
  const std::string& plan_id() const { return newest_; }

  // Returns the verdict. `plan` and `graph` are those of plan_id(), else the
  // run's newest; empty messages if there are none. `state` is the run's, and
  // `exit_code` that of its process (0: not known).
  v1::Verdict Build(const v1::Plan& plan, const v1::StepGraph& graph,
                    v1::RunState state, int32_t exit_code = 0) const;

  // Of a run of which Build says nothing: how it failed, and its plain steps.
  v1::Verdict WithoutPlan(v1::RunState state, int32_t exit_code) const;

 private:
  // The steps under one plan.
  struct Steps {
    int64_t largest_peak_bytes = 0;
    // From steps outside windows and without a mismatch, by step, because
    // checked steps are excluded later.
    std::vector<std::pair<uint64_t, int64_t>> times_ns;
  };
  struct Applied {
    int64_t own_ns = 0;
    int64_t peak_bytes = 0;
  };

  std::vector<int64_t> Times(const Steps& steps) const;
  std::string Refusal(const std::string& plan_id) const;
  std::string Failure(v1::RunState state, int32_t exit_code) const;

  std::string newest_;
  std::map<std::string, Steps> planned_;  // by plan
  std::map<std::string, Applied> applied_;
  std::map<std::string, std::string> refused_;  // reason, by plan; "": no plan
  uint32_t planned_steps_ = 0;
  uint32_t mismatches_ = 0;
  uint64_t kept_since_ = 0;  // a step; 0: the newest did not
  uint32_t over_budget_steps_ = 0;
  int64_t over_budget_bytes_ = 0;
  uint32_t unplanned_steps_ = 0;
  std::set<std::string> unplanned_in_;  // sessions
  int64_t unplanned_peak_bytes_ = 0;
  std::set<uint64_t> checked_steps_;
  uint32_t checks_ = 0;
  uint32_t value_checks_ = 0;
  uint32_t checks_differing_ = 0;
  uint32_t value_checks_differing_ = 0;
  uint32_t values_checked_ = 0;
  uint32_t gradients_checked_ = 0;
  uint32_t gradients_differing_ = 0;
  std::string unchecked_;
  std::string left_;
  std::string other_load_;
  std::string withdrawn_;
  std::string failure_;
};

// Reads the reports of a run as they are stored, and builds its verdict.
class RunReports {
 public:
  // Reads what was stored since the last call.
  Status Read(Database& db, const std::string& run_id);
  // The verdict on everything read. Empty if there is no plan and none was
  // refused.
  StatusOr<v1::Verdict> Verdict(Database& db, const v1::Run& run);

  const StepLog& log() const { return log_; }
  // The newest rows that were read.
  int64_t last_step() const { return last_step_; }
  int64_t last_check() const { return last_check_; }

 private:
  StatusOr<int64_t> BudgetOf(Database& db, const std::string& plan_id);
  Status LoadShown(Database& db, const std::string& plan_id);
  StatusOr<bool> KnowsMorePlans(Database& db) const;

  VerdictBuilder builder_;
  StepLog log_;
  int64_t last_step_ = 0;
  int64_t last_check_ = 0;
  int64_t last_state_ = 0;
  std::map<std::string, int64_t> budgets_;  // -1: a plan that is not stored
  // The plan and graph that the verdict is about.
  v1::Plan plan_;
  v1::StepGraph graph_;
};

// Adds verdict, standing and ending to a run as it is stored: of a run that is
// over the stored verdict, else one of all its reports, which sets `made_of` to
// its VerdictSource.
Status AddVerdict(Database& db, v1::Run& run, std::string* made_of = nullptr);

// A run for people: how far its proof has come, and how it ended. Page and
// command show these and decide nothing by themselves.

// Sets `standing` and `ending` of a run whose verdict is there.
void Describe(v1::Run& run);

}  // namespace reprise::server
