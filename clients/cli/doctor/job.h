// SPDX-License-Identifier: Apache-2.0
//
// The job that `reprise doctor` runs: sends a few thousand records and a small
// step graph through the real agent.
#pragma once

#include <string>

namespace reprise::cli {

// Runs in a child process that has no threads; never returns. Writes these
// lines to `out`:
//
//   abi VERSION
//   start STATUS WHY
//   push PUSHED DROPPED STATUS NANOSECONDS
//   plan STATUS NANOSECONDS WHY
//
// and then waits until `in` is closed before it ends its session.
[[noreturn]] void RunDoctorJob(const std::string& agent,
                               const std::string& socket,
                               const std::string& run_id, int out, int in);

}  // namespace reprise::cli
