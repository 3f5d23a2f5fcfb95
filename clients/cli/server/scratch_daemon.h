// SPDX-License-Identifier: Apache-2.0
//
// A daemon that nothing else uses: socket, store and spool are in a temporary
// folder that is removed with it.
#pragma once

#include <string>

#include "base/status.h"
#include "clients/cli/server/private_daemon.h"

namespace reprise::cli {

class ScratchDaemon {
 public:
  // Errors as StartDaemon.
  static StatusOr<ScratchDaemon> Start();
  ~ScratchDaemon();
  ScratchDaemon(ScratchDaemon&& other) noexcept;
  ScratchDaemon& operator=(ScratchDaemon&& other) noexcept;

  const std::string& socket() const { return daemon_.socket; }
  // HOST:PORT.
  std::string server() const;
  // The file with the token that its server requires.
  std::string token_file() const;

 private:
  ScratchDaemon() = default;

  std::string folder_;
  Daemon daemon_;
};

// Returns the pid in the server.json next to a socket; 0 if unknown.
pid_t DaemonPid(const std::string& socket);

}  // namespace reprise::cli
