// SPDX-License-Identifier: Apache-2.0
//
// What did not answer in time: on a busy machine that proves nothing.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <string>

#include "clients/cli/doctor/doctor.h"

namespace reprise::cli {

struct Load {
  double last_minute = 0;  // 0: not known
  int processors = 1;

  bool IsHigh() const { return last_minute > processors; }
};

Load LoadNow();

// Whether a process stands still: then the load is no reason for its silence.
bool IsStopped(pid_t pid);

// "did not answer within 4 s; the load is 30.1 on 2 processors"
std::string TooLate(std::chrono::seconds patience, const Load& load);

// Returns a check of what did not answer `what`: a problem with this advice; a
// warning if the machine is busy.
Check LateCheck(const std::string& name, const std::string& what,
                std::chrono::seconds patience, const Load& load,
                const std::string& advice);

}  // namespace reprise::cli
