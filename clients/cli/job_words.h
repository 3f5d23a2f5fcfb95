// SPDX-License-Identifier: Apache-2.0
//
// Where the job begins on the line of `reprise run` or `reprise fit`: at the
// first word that is neither a flag nor the value of one, as behind env, nice
// or torchrun.
//
//   reprise --quiet run --budget 0.5x python train.py --lr 0.1 -- data
//                                     ^
// A job whose first word begins with a dash needs `--` before it.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "clients/cli/core/options.h"

namespace reprise::cli {

// Returns whether a verb is followed by the words of a job.
bool TakesJob(const std::string& verb);

// Returns the position of the job's first word among `words`, which are the
// arguments before the first `--`; words.size() if no job begins there. That is
// also the answer at a flag that nobody knows: whether it takes a value is not
// known either.
size_t JobBegins(const CommandLine& line,
                 const std::vector<std::string>& words);

}  // namespace reprise::cli
