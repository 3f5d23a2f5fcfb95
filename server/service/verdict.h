// SPDX-License-Identifier: Apache-2.0
//
// Predicted against measured: the verdict of a run, from its newest plan, the
// graph's own measurement, and every report of a planned step.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"
#include "reprise/v1/graph.pb.h"
#include "reprise/v1/plan.pb.h"
#include "reprise/v1/query.pb.h"
#include "server/store/sqlite.h"

namespace reprise::server {

// Grows as reports arrive, so that a watcher does not read a run again for
// every event.
class VerdictBuilder {
 public:
  void Add(const v1::StepReport& step);
  void Add(const v1::VerifyReport& check);

  // `plan`, `graph`: the run's newest; empty messages where there is none.
  v1::Verdict Build(const v1::Plan& plan, const v1::StepGraph& graph) const;

 private:
  int64_t largest_peak_bytes_ = 0;
  uint32_t planned_steps_ = 0;
  uint32_t mismatches_ = 0;
  std::vector<int64_t> step_times_ns_;  // planned, outside windows
  uint32_t checks_ = 0;
  uint32_t checks_differing_ = 0;
  uint32_t value_checks_ = 0;
  uint32_t gradients_checked_ = 0;
  uint32_t gradients_differing_ = 0;
};

// The run's row with its verdict; reads all its reports. NOT_FOUND.
StatusOr<v1::Run> LoadRunWithVerdict(Database& db, const std::string& run_id);

// The figures a verdict needs of a run's newest plan and graph; empty messages
// where there is none.
struct Newest {
  v1::Plan plan;
  v1::StepGraph graph;
};
StatusOr<Newest> LoadNewest(Database& db, const v1::Run& run);

}  // namespace reprise::server
