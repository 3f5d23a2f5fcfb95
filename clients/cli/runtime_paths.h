// SPDX-License-Identifier: Apache-2.0
//
// Where a daemon and its jobs meet on this machine: at the places of
// profiler/include/reprise_sockets.h (docs/command.md). `server.json` lies beside
// the socket and says where the server listens.
#pragma once

#include <string>

namespace reprise::cli {

// The socket of the service where the machine has one, else PrivateSocket().
std::string AgentSocket();
// Where a daemon of this user listens.
std::string PrivateSocket();
std::string ServerFile();

// libreprise_agent.so: REPRISE_AGENT, else the one of the build or installation
// that this command belongs to. Empty: none is there.
std::string AgentLibrary();

// The folder that attaches Reprise to a Python program when it is first on
// PYTHONPATH: REPRISE_LAUNCH, or the one in the source tree or the installation
// that this command belongs to. Empty: none is there.
std::string LaunchFolder();

}  // namespace reprise::cli
