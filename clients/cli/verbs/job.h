// SPDX-License-Identifier: Apache-2.0
//
// The job of `reprise run`: a child process that should not notice that it is
// one. It has our terminal, our streams and our process group, so that Ctrl-C
// and Ctrl-Z reach it as they would without us; signals sent to us alone are
// forwarded.
#pragma once

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

}  // namespace reprise::cli
