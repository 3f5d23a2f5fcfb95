// SPDX-License-Identifier: Apache-2.0
//
// The trade-off curve for a terminal: as a table, and drawn in characters.
#pragma once

#include <string>
#include <vector>

#include "reprise/v1/planner.pb.h"

namespace reprise::cli {

// Returns one line per point, largest budget first, with a heading.
std::string CurveTable(const std::vector<v1::TradeoffPoint>& points);

// Returns a drawing of overhead over budget, about 70 by 14 characters. Empty
// if there are fewer than two feasible points.
std::string CurvePicture(const std::vector<v1::TradeoffPoint>& points);

}  // namespace reprise::cli
