// SPDX-License-Identifier: Apache-2.0
//
// A daemon that nobody else sees: socket, store and spool in a folder of its
// own, which goes with it.
#pragma once

#include <string>

#include "base/status.h"
#include "clients/cli/private_daemon.h"

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
  // Of the token that its server asks for.
  std::string token_file() const;

 private:
  ScratchDaemon() = default;

  std::string folder_;
  Daemon daemon_;
};

// The pid in the server.json beside a socket; 0: nobody says.
pid_t DaemonPid(const std::string& socket);

}  // namespace reprise::cli
