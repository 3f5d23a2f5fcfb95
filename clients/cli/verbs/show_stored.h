// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "base/status.h"
#include "clients/cli/core/console.h"
#include "clients/cli/server/server_client.h"

namespace reprise::cli {

// Shows a run or, if there is no such run, the plan with this id. Returns
// the exit code.
int ShowStored(const std::string& id, const ServerClient& client,
               const Globals& globals, Console& console);

// Shows a step graph or plan file without a server. If the plan's graph is
// found, the evaluator checks the plan against it. Returns the exit code.
int ShowFile(const std::string& path, const Globals& globals, Console& console);

}  // namespace reprise::cli
