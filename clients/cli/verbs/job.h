// SPDX-License-Identifier: Apache-2.0
//
// The job of `reprise run`: a child process that should not notice that it is
// one. It has our terminal, our streams and our process group, so that Ctrl-C
// and Ctrl-Z reach it as they would without us; signals sent to us alone are
// forwarded.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/status.h"

namespace reprise::cli {

struct JobResult {
  int exit_code = 0;  // 128 + signal if a signal ended it
  int signal = 0;
};

// NOT_FOUND, PERMISSION_DENIED: there is no such program in PATH or at this
// path, or it may not be executed.
Status CheckProgram(const std::string& program);

// Returns the exit code of shells for what CheckProgram has found: 127 if there
// is no program, 126 if it may not be executed.
inline int ExitCodeWithout(const Status& program) {
  return program.code() == Code::kNotFound ? 127 : 126;
}

using Variables = std::vector<std::pair<std::string, std::string>>;

// Returns what a Python program needs in its environment to be attached to the
// daemon at this socket.
Variables Attached(const std::string& socket);

// Runs `command` (found in PATH) with `environment` added, and waits for it.
// NOT_FOUND, PERMISSION_DENIED: it cannot be started.
StatusOr<JobResult> RunJob(const std::vector<std::string>& command,
                           const Variables& environment);

// CUDA_INJECTION64_PATH names one library that the CUDA driver loads when a
// program first uses CUDA. It brings the agent in before any context exists,
// even in a program that does not load the agent itself; nsys, ncu and other
// tools use the same variable. If the driver cannot load the library, the
// program fails, so the agent is only set there after a test load has
// succeeded.

// Returns the environment variables with which the driver loads the agent into
// a job: CUDA_INJECTION64_PATH, and REPRISE_AGENT, so that Python loads the
// same file and not a second agent. Empty if there is no agent, or if the
// variable is "none", which is CUDA's word for nothing.
//
// FAILED_PRECONDITION: another tool uses the variable; names it. Call it before
// any thread is started: the test load runs in a forked child.
StatusOr<std::vector<std::pair<std::string, std::string>>> TakeInjectionSlot();

// The run shared by the ranks that one launcher started on this machine.
//
// `torchrun --no-python reprise run -- python train.py` runs this command once
// per rank. All of them are one job with one run, whose outcome the first rank
// reports. Ranks of the same torchrun have the same parent; its id and start
// time, with torchrun's count of attempts, name the run.
struct Launched {
  int rank = 0;
  std::string run_id;
};

// Determines it from RANK, WORLD_SIZE and LOCAL_WORLD_SIZE. Nothing if this
// process is not a rank, or if some ranks are on other machines.
std::optional<Launched> LaunchedTogether();

}  // namespace reprise::cli
