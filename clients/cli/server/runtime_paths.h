// SPDX-License-Identifier: Apache-2.0
//
// The socket paths at which a daemon and its jobs meet, from
// profiler/include/reprise_sockets.h (docs/command.md). `server.json` is next
// to the socket and says where the server listens.
#pragma once

#include <string>

namespace reprise::cli {

// The value of an environment variable; empty if it is not set.
std::string Environment(const char* name);

// The machine's service socket if it exists, else PrivateSocket().
std::string AgentSocket();
// The path at which a daemon of this user listens.
std::string PrivateSocket();
std::string ServerFile();

// Path of libreprise_agent.so: REPRISE_AGENT, else that of the build or
// installation to which this command belongs. Empty if there is none.
std::string AgentLibrary();

// The folder that attaches Reprise to a Python program when it is first on
// PYTHONPATH: REPRISE_LAUNCH, else that of the source tree or installation to
// which this command belongs. Empty if there is none.
std::string LaunchFolder();

}  // namespace reprise::cli
