// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "clients/cli/console.h"

namespace reprise::cli {

// Shows a step graph or a plan file without a server. A plan is checked
// against its graph by the evaluator where the graph is found. Returns the
// exit code.
int ShowFile(const std::string& path, const Globals& globals, Console& console);

}  // namespace reprise::cli
