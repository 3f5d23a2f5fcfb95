// SPDX-License-Identifier: Apache-2.0
//
// The trade-off curve in a terminal: a table, and the curve in characters.
#pragma once

#include <string>
#include <vector>

#include "reprise/v1/planner.pb.h"

namespace reprise::cli {

// One line per point, largest budget first, with a heading.
std::string CurveTable(const std::vector<v1::TradeoffPoint>& points);

// Overhead over budget, about 70 by 14 characters. Empty with fewer than two
// feasible points.
std::string CurvePicture(const std::vector<v1::TradeoffPoint>& points);

}  // namespace reprise::cli
