// SPDX-License-Identifier: Apache-2.0
//
// Prints what a run was doing, and what it held in memory, when it was killed
// or ran out of memory.
#pragma once

#include "clients/cli/core/console.h"
#include "reprise/v1/query.pb.h"

namespace reprise::cli {

// Prints the newest moment in full, and the sentences of earlier ones.
void PrintMoments(const v1::GetMomentsResponse& moments, Console& console);

}  // namespace reprise::cli
