// SPDX-License-Identifier: Apache-2.0
//
// Exit codes. Scripts depend on them, so they never change (docs/command.md).
#pragma once

#include "base/status.h"

namespace reprise::cli {

enum ExitCode {
  kDone = 0,
  kFailed = 1,
  kUsage = 2,
  kNoPlan = 3,       // proven: no plan fits in the budget
  kUnreachable = 4,  // there is no server
  kTimedOut = 5,     // the time limit was reached without a plan
  kInterrupted = 130,
};

inline int ExitCodeOf(const Status& status) {
  switch (status.code()) {
    case Code::kOk:
      return kDone;
    case Code::kUnavailable:
      return kUnreachable;
    case Code::kDeadlineExceeded:
      return kTimedOut;
    case Code::kCancelled:
      return kInterrupted;
    default:
      return kFailed;
  }
}

}  // namespace reprise::cli
