// SPDX-License-Identifier: Apache-2.0
//
// The trade-off curve as a self-contained SVG: budget in bytes to the right,
// overhead upwards, the proven bound as a dashed line below the plans.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "reprise/v1/planner.pb.h"

namespace reprise::cli {

std::string CurveSvg(const std::vector<v1::TradeoffPoint>& points,
                     std::string_view title);

}  // namespace reprise::cli
