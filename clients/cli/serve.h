// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

namespace reprise::cli {

// Runs the server in this process until it is stopped. `flags` are those of
// reprised. Returns the exit code.
int Serve(const std::vector<std::string>& flags);

}  // namespace reprise::cli
