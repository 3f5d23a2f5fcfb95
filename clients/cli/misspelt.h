// SPDX-License-Identifier: Apache-2.0
//
// What was probably meant by a word that the command does not know.
#ifndef REPRISE_CLIENTS_CLI_MISSPELT_H_
#define REPRISE_CLIENTS_CLI_MISSPELT_H_

#include <CLI/CLI.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace reprise::cli {

// The known word with the fewest typing errors (letters added, missing, wrong
// or swapped with their neighbour), if they are few: at most a third of the
// word's letters. Empty: none. O(letters^2) per known word.
std::string Nearest(std::string_view word,
                    const std::vector<std::string>& known);

// One sentence about the first argument that is neither a flag of `verb` (the
// application itself where none was typed) or of `app`, nor a verb; empty:
// there is none. Values of flags and files are not looked at.
std::string FirstUnknown(const CLI::App& app, const CLI::App& verb,
                         const std::vector<std::string>& words);

}  // namespace reprise::cli

#endif  // REPRISE_CLIENTS_CLI_MISSPELT_H_
