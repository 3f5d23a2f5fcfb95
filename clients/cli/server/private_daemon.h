// SPDX-License-Identifier: Apache-2.0
//
// Starts a daemon for a job, or for reading what is stored, if none is running.
// `reprised --private` listens on a free loopback port and exits an hour after
// the last job has ended and the last request was made. The Python package does
// the same with the same lock (`start.lock`), so that a command and a job that
// start at the same time end up with one daemon.
#pragma once

#include <sys/socket.h>
#include <sys/types.h>

#include <string>

#include "base/status.h"

namespace reprise::cli {

struct Daemon {
  std::string socket;  // where the agent will find it
  pid_t pid = 0;       // 0: it was already running
};

// Returns a daemon that answers, starting one if necessary; it outlives this
// process. FAILED_PRECONDITION: it cannot be found or started; the message has
// the daemon's last line of output.
StatusOr<Daemon> EnsureDaemon();

// The result of connecting as an agent does, and disconnecting: a connection
// without HELLO is not a session.
struct Knock {
  int error = 0;  // errno
  ucred peer{};   // the listener; pid 0: in an unseen namespace
};
Knock KnockAt(const std::string& socket);

// Returns whether something listens there.
inline bool DaemonAnswers(const std::string& socket) {
  return KnockAt(socket).error == 0;
}

// Stops a daemon that this process started, and waits for it.
void StopDaemon(const Daemon& daemon);

}  // namespace reprise::cli
