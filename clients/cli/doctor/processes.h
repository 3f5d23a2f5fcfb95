// SPDX-License-Identifier: Apache-2.0
//
// Finds processes that Reprise could profile but does not, with the reason for
// each. Reads /proc: which processes have libcuda or the agent loaded.
// Processes of other users are only known if the driver lists them.
#pragma once

#include <sys/types.h>

#include <set>
#include <string>
#include <vector>

#include "clients/cli/doctor/doctor.h"

namespace reprise::cli {

// The daemon's sessions, and where it was asked.
struct Sessions {
  std::set<pid_t> pids;  // connected now
  std::string socket;    // the one that agents of this user connect to
  bool is_usual = true;  // agents connect to it without being told
  bool daemon = false;   // a daemon answers there
};

// Returns one check per process without a session, and one that counts the
// others. `on_gpu`: processes that the driver sees on a device.
std::vector<Check> CheckProcesses(const Sessions& sessions,
                                  const std::vector<pid_t>& on_gpu);

// The name of a user, or "uid N" where the machine has none for it.
std::string UserName(uid_t uid);

}  // namespace reprise::cli
