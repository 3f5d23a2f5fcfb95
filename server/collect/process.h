// SPDX-License-Identifier: Apache-2.0
//
// Whether the process behind a session still lives. A pid alone is reused; a
// pid with its start time is not.
#pragma once

#include <cstdint>
#include <string>

namespace reprise::server {

// Field 22 of /proc/<pid>/stat; 0 where the process is not to be seen.
uint64_t StartTicksOf(int64_t pid);

enum class Life {
  kAlive,
  kZombie,  // its main thread has ended; others may still run
  kGone,
};
Life LifeOf(int64_t pid, uint64_t start_ticks);

// Changes with every boot of the machine; empty where unknown.
std::string CurrentBootId();

}  // namespace reprise::server
