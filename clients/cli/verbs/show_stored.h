// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "clients/cli/core/console.h"
#include "clients/cli/server/server_client.h"

namespace reprise::cli {

// Shows a run or, if there is no such run, the plan with this id. `open` opens
// the run's page. Returns the exit code.
int ShowStored(const std::string& id, bool open, const ServerClient& client,
               const Globals& globals, Console& console);

}  // namespace reprise::cli
