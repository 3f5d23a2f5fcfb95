// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "clients/cli/core/console.h"

namespace reprise::cli {

// Shows a step graph or plan file without a server. If the plan's graph is
// found, the evaluator checks the plan against it. Returns the exit code.
int ShowFile(const std::string& path, const Globals& globals, Console& console);

}  // namespace reprise::cli
