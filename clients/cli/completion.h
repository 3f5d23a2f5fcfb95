// SPDX-License-Identifier: Apache-2.0
//
// Shell completion scripts, generated from the defined commands and options, so
// that they are always up to date. They complete commands, options, option
// values from a fixed list, files, and run ids, which they get from `reprise
// --completion runs`.
#pragma once

#include <string>

#include "base/status.h"
#include "clients/cli/core/options.h"

namespace reprise::cli {

// Returns the script for `shell`. INVALID_ARGUMENT for a shell other than bash,
// zsh and fish.
StatusOr<std::string> CompletionScript(const CommandLine& line,
                                       const std::string& shell);

}  // namespace reprise::cli
