// SPDX-License-Identifier: Apache-2.0
//
// Options that `plan` and `sweep` share: the executor, the time limit, and the
// progress line of the planner.
#pragma once

#include <chrono>
#include <string>

#include "base/status.h"
#include "clients/cli/core/console.h"
#include "planner/planner.h"
#include "reprise/v1/planner.pb.h"

namespace reprise::cli {

// Parses one executor of formats/convert/capabilities.h: "free", "tape",
// "free:seeded_ok=1". INVALID_ARGUMENT for others.
StatusOr<v1::Capabilities> ExecutorCapabilities(const std::string& name);

// Parses "5s", "500ms", "2m", or seconds without a unit. INVALID_ARGUMENT: not
// a duration, not above 0, or above a day.
StatusOr<std::chrono::milliseconds> ParseTimeLimit(const std::string& text);

// Parses "0.1%" as 0.001, and "0". INVALID_ARGUMENT: not a percentage from 0 to
// 1000.
StatusOr<double> ParseGap(const std::string& text);

// Returns "planning  3.2 s  overhead 9.4 %  bound 8.3 %  gap 1.1 %"; overhead <
// 0 means no plan yet.
std::string ProgressText(int64_t elapsed_ns, double overhead, double bound);

// Watches one call of the planner: shows progress, and ends the call on Ctrl-C
// and at the time limit. Must outlive the call.
class Watch {
 public:
  Watch(Console& console, std::chrono::milliseconds time_limit);

  // Installs the watch in the request.
  void Attach(planner::Request& request);

  double elapsed_ms() const;

 private:
  bool ShouldStop();
  void Show();

  Console& console_;
  std::chrono::steady_clock::time_point start_;
  std::chrono::steady_clock::time_point shown_;
  std::chrono::milliseconds time_limit_;
  planner::Progress progress_;
};

// Makes Ctrl-C a request rather than the end: the first one asks the planner to
// stop and return its best plan; a second one ends the process.
class CatchInterrupt {
 public:
  CatchInterrupt();
  ~CatchInterrupt();
  CatchInterrupt(const CatchInterrupt&) = delete;
  CatchInterrupt& operator=(const CatchInterrupt&) = delete;

  // Returns whether SIGINT or SIGTERM was received.
  static bool Asked();
};

}  // namespace reprise::cli
