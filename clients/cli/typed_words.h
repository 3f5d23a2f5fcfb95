// SPDX-License-Identifier: Apache-2.0
//
// Suggests what was probably meant by an unknown word on the command line.
#pragma once

#include <cstddef>
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

// Where the job begins on the line of `reprise run` or `reprise fit`: at the
// first word that is neither a flag nor the value of one, as behind env, nice
// or torchrun.
//
//   reprise --quiet run --budget 0.5x python train.py --lr 0.1 -- data
//                                     ^
// A job whose first word begins with a dash needs `--` before it.

// Returns whether a verb is followed by the words of a job.
bool TakesJob(const std::string& verb);

// Returns the position of the job's first word among `words`, which are the
// arguments before the first `--`; words.size() if no job begins there. That is
// also the answer at a flag that nobody knows: whether it takes a value is not
// known either.
size_t JobBegins(const CommandLine& line,
                 const std::vector<std::string>& words);

}  // namespace reprise::cli
