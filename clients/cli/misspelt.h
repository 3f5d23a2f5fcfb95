// SPDX-License-Identifier: Apache-2.0
//
// Suggests what was probably meant by an unknown word on the command line.
#ifndef REPRISE_CLIENTS_CLI_MISSPELT_H_
#define REPRISE_CLIENTS_CLI_MISSPELT_H_

#include <string>
#include <string_view>
#include <vector>

#include "clients/cli/core/options.h"

namespace reprise::cli {

// Returns the known word with the fewest typing errors (letters added, missing,
// wrong or swapped with their neighbour), or an empty string if these exceed a
// third of the word's letters. O(letters^2) per known word.
std::string Nearest(std::string_view word,
                    const std::vector<std::string>& known);

// Returns one sentence about the first word that is neither a verb nor a flag
// of `verb` (null: none was typed) or of all verbs; empty if there is none.
// Values of flags and file names are not checked.
std::string FirstUnknown(const CommandLine& line, const Verb* verb,
                         const std::vector<std::string>& words);

}  // namespace reprise::cli

#endif  // REPRISE_CLIENTS_CLI_MISSPELT_H_
