// SPDX-License-Identifier: Apache-2.0
//
// An explanation as text: what the plan does, by groups of equal blocks; what
// is largest at the peak; and what the opposite decision would cost. For an
// impossible budget, what makes it impossible.
#pragma once

#include <string>

#include "reprise/v1/planner.pb.h"

namespace reprise::cli {

// Returns at most `most` lines of each table, and how many more there are.
std::string ExplanationText(const v1::Explanation& explanation, int most);

}  // namespace reprise::cli
