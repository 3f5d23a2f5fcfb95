// SPDX-License-Identifier: Apache-2.0
//
// The job that `reprise doctor` runs: sends a few thousand records and a small
// step graph through the real agent.
#pragma once

#include <string>

namespace reprise::cli {

// Runs in a child process that has no threads. Returns these lines:
//
//   abi VERSION
//   start STATUS WHY
//   push PUSHED DROPPED STATUS NANOSECONDS
//   plan STATUS NANOSECONDS WHY
std::string RunDoctorJob(const std::string& agent, const std::string& socket,
                         const std::string& run_id);

}  // namespace reprise::cli
