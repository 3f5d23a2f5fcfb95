// SPDX-License-Identifier: Apache-2.0
//
// An explanation as text: what the plan does by groups of equal blocks, what is
// largest at the peak and what the other decision would cost; for an impossible
// budget, what stands in its way.
#pragma once

#include <string>

#include "reprise/v1/planner.pb.h"

namespace reprise::cli {

// At most `most` lines of each table, then how many more there are.
std::string ExplanationText(const v1::Explanation& explanation, int most);

}  // namespace reprise::cli
