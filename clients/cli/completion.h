// SPDX-License-Identifier: Apache-2.0
//
// Shell completion scripts, generated from the commands and options that are
// defined, so that they are always up to date.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

#include "base/status.h"

namespace reprise::cli {

// INVALID_ARGUMENT for a shell other than bash, zsh and fish.
StatusOr<std::string> CompletionScript(const CLI::App& app,
                                       const std::string& shell);

}  // namespace reprise::cli
