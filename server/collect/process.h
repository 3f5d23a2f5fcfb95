// SPDX-License-Identifier: Apache-2.0
//
// Tells whether the process of a session is alive. A pid alone may be reused; a
// pid with its start time is not.
#pragma once

#include <cstdint>
#include <string>

namespace reprise::server {

// Returns field 22 of /proc/<pid>/stat; 0 if the process cannot be seen.
uint64_t StartTicksOf(int64_t pid);

enum class Life {
  kAlive,
  kZombie,  // its main thread has ended; others may still run
  kGone,
};
Life LifeOf(int64_t pid, uint64_t start_ticks);

// Returns an id that changes with every boot of the machine; empty if unknown.
std::string CurrentBootId();

}  // namespace reprise::server
