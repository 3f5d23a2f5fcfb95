// SPDX-License-Identifier: Apache-2.0
//
// What a run was doing, and what it held, when it was killed or ran out of
// memory, as text.
#pragma once

#include "clients/cli/console.h"
#include "reprise/v1/query.pb.h"

namespace reprise::cli {

// Newest first, in full; earlier ones as their sentences.
void PrintMoments(const v1::GetMomentsResponse& moments, Console& console);

}  // namespace reprise::cli
