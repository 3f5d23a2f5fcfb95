// SPDX-License-Identifier: Apache-2.0
#include "server/convert/search_options.h"

#include <cmath>

#include "base/str_cat.h"

namespace reprise::server {
namespace {

template <typename Message>
Status ApplyShared(const Message& from, planner::Request& to) {
  if (from.has_target_gap()) {
    if (!std::isfinite(from.target_gap()) || from.target_gap() < 0 ||
        from.target_gap() > 1000) {
      return InvalidArgument(
          "target_gap: must be a fraction from 0 to 1000, such as 0.001");
    }
    to.target_gap = from.target_gap();
  }
  if (from.seed() != 0) to.seed = from.seed();
  return OkStatus();
}

}  // namespace

Status ApplySearchOptions(const v1::PlanRequest& from, planner::Request& to) {
  return ApplyShared(from, to);
}

Status ApplySearchOptions(const v1::SweepRequest& from, planner::Request& to) {
  return ApplyShared(from, to);
}

}  // namespace reprise::server
