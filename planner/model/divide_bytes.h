// SPDX-License-Identifier: Apache-2.0
//
// Which bytes of a sum are of which category, where only parts of it are known.
#pragma once

#include <algorithm>
#include <span>
#include <vector>

#include "planner/model/step_graph.h"

namespace reprise::planner {

// Divides bytes among parts, in their order, as far as they go. What the parts
// leave is a last one, of category `rest`. Leaves out what is empty.
inline std::vector<StaticPart> DivideBytes(int64_t bytes,
                                           std::span<const StaticPart> parts,
                                           Category rest) {
  std::vector<StaticPart> divided;
  const auto take = [&](Category category, int64_t most) {
    const int64_t taken = std::min(most, bytes);
    if (taken > 0) divided.push_back({.category = category, .bytes = taken});
    bytes -= taken;
  };
  for (const StaticPart& part : parts) take(part.category, part.bytes);
  take(rest, bytes);
  return divided;
}

}  // namespace reprise::planner
