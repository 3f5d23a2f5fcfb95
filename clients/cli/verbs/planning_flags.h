// SPDX-License-Identifier: Apache-2.0
//
// The flags that `plan`, `sweep` and `explain` share: which executor will run
// the plan, and how long and how hard to search. Checked once, then passed to
// the planner in this process or to the server.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include "base/status.h"
#include "clients/cli/core/options.h"
#include "planner/planner.h"
#include "reprise/v1/planner.pb.h"

namespace reprise::cli {

struct PlanningOptions {
  v1::Capabilities capabilities;
  std::chrono::milliseconds time_limit{0};
  // Set by the user: then all of it is used, unless the gap is reached.
  bool has_time_limit = false;
  double target_gap = 0;
  uint64_t seed = 1;
  int threads = 1;
  planner::Strategy strategy = planner::Strategy::kAuto;

  // Copies the options into a request; the capabilities are the task's.
  void Apply(planner::Request& request) const;
  void Apply(v1::PlanRequest& request) const;
  void Apply(v1::SweepRequest& request) const;
};

class PlanningFlags {
 public:
  explicit PlanningFlags(const char* time_limit) : time_limit_(time_limit) {}

  // Adds the flags to a verb; `sweep` has no strategy.
  void Define(Verb& verb, bool with_strategy);

  // Checks the flags. INVALID_ARGUMENT names the flag. Unless the flag says
  // otherwise, a file is planned for `free` and a stored graph for `tape`.
  StatusOr<PlanningOptions> Check(bool is_file) const;

  const std::string& time_limit() const { return time_limit_; }

 private:
  std::string executor_;
  std::string time_limit_;
  const Verb* verb_ = nullptr;
  std::string gap_ = "0.1%";
  std::string strategy_ = "auto";
  uint64_t seed_ = 1;
  int threads_ = 1;
};

}  // namespace reprise::cli
