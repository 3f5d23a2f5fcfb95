// SPDX-License-Identifier: Apache-2.0
//
// A daemon for a job, or for a look at what is stored, where none runs.
// `reprised --private` listens on a free loopback port and ends by itself an
// hour after the last job and the last question; whoever starts second finds
// the first one's daemon. The Python
// package does the same, with the same lock (`start.lock`), so that a command
// and a job that start together end up with one daemon.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "base/status.h"

namespace reprise::cli {

struct Daemon {
  std::string socket;  // where the agent will find it
  pid_t pid = 0;       // 0: it was there already
};

// A daemon that answers, started if need be; one that is started outlives this
// process. FAILED_PRECONDITION: it cannot be
// found or started; the message has the daemon's own last line.
StatusOr<Daemon> EnsureDaemon();

// Starts `reprised --private` on this socket, whose folder is there, and waits
// until it is up. Errors as EnsureDaemon.
StatusOr<Daemon> StartDaemon(const std::string& socket,
                             const std::vector<std::string>& more_flags);

// Something listens there. Connecting and leaving again is no session.
bool DaemonAnswers(const std::string& socket);

// Ends a daemon that this process started and waits for it.
void StopDaemon(const Daemon& daemon);

}  // namespace reprise::cli
