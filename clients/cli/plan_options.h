// SPDX-License-Identifier: Apache-2.0
//
// What `plan` and `sweep` share: the executor, the time limit, and the line
// that shows how far the planner is.
#pragma once

#include <chrono>
#include <string>

#include "base/status.h"
#include "clients/cli/console.h"
#include "planner/planner.h"
#include "reprise/v1/planner.pb.h"

namespace reprise::cli {

// "free" or "tape". INVALID_ARGUMENT for others.
StatusOr<v1::Capabilities> ExecutorCapabilities(const std::string& name);

// "5s", "500ms", "2m", or seconds without a unit. INVALID_ARGUMENT: not a
// duration, not above 0, or above a day.
StatusOr<std::chrono::milliseconds> ParseTimeLimit(const std::string& text);

// Watches one call of the planner: shows progress, ends it on Ctrl-C and at
// the time limit. Must outlive the call.
class Watch {
 public:
  Watch(Console& console, std::chrono::milliseconds time_limit);

  // Hooks the watch into the request.
  void Attach(planner::Request& request);

  double elapsed_ms() const;
  bool timed_out() const { return timed_out_; }

 private:
  bool ShouldStop();
  void Show();

  Console& console_;
  std::chrono::steady_clock::time_point start_;
  std::chrono::steady_clock::time_point shown_;
  std::chrono::milliseconds time_limit_;
  planner::Progress progress_;
  bool timed_out_ = false;
};

}  // namespace reprise::cli
