// SPDX-License-Identifier: Apache-2.0
//
// A comparison as tables: the two sides, then bytes at the peak by category,
// module and source line, then what runs again.
#pragma once

#include <string>

#include "reprise/v1/query.pb.h"

namespace reprise::cli {

// `all`: also rows that are equal. At most `most` lines in a table.
std::string ComparisonText(const v1::Comparison& comparison, bool all,
                           int most);

}  // namespace reprise::cli
