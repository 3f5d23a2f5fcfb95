// SPDX-License-Identifier: Apache-2.0
//
// Processes that Reprise could see and does not, each with the reason. Found in
// /proc: who has libcuda or the agent loaded. What belongs to others is only
// known where the driver names it.
#pragma once

#include <sys/types.h>

#include <set>
#include <string>
#include <vector>

#include "clients/cli/doctor.h"

namespace reprise::cli {

// What the daemon says, and where it was asked.
struct Sessions {
  std::set<pid_t> pids;  // connected now
  std::string socket;    // that agents of this user look at
  bool is_usual = true;  // they do without being told to
  bool daemon = false;   // one answers there
};

// One check per process that has no session, and one that counts those that
// have. `on_gpu`: processes that the driver says are on a device.
std::vector<Check> CheckProcesses(const Sessions& sessions,
                                  const std::vector<pid_t>& on_gpu);

}  // namespace reprise::cli
