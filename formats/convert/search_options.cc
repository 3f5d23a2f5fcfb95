// SPDX-License-Identifier: Apache-2.0
#include "formats/convert/search_options.h"

#include <cmath>

#include "base/str_cat.h"

namespace reprise::formats {

// The enums have the same order; the proto's starts with UNSPECIFIED.
static_assert(static_cast<int>(planner::Strategy::kAuto) + 1 ==
              v1::STRATEGY_AUTO);
static_assert(static_cast<int>(planner::Strategy::kMemory) + 1 ==
              v1::STRATEGY_MEMORY);
static_assert(static_cast<int>(planner::Strategy::kSpeed) + 1 ==
              v1::STRATEGY_SPEED);
static_assert(static_cast<int>(planner::Strategy::kCollection) + 1 ==
              v1::STRATEGY_COLLECTION);
static_assert(static_cast<int>(planner::Strategy::kPerBlock) + 1 ==
              v1::STRATEGY_PER_BLOCK);
static_assert(static_cast<int>(planner::Strategy::kSaveAll) + 1 ==
              v1::STRATEGY_SAVE_ALL);

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
  if (!v1::Strategy_IsValid(from.strategy())) {
    return InvalidArgument(
        StrCat("strategy: unknown value ", static_cast<int>(from.strategy())));
  }
  if (from.strategy() != v1::STRATEGY_UNSPECIFIED) {
    to.strategy =
        static_cast<planner::Strategy>(from.strategy() - v1::STRATEGY_AUTO);
  }
  return ApplyShared(from, to);
}

v1::Strategy ToProto(planner::Strategy strategy) {
  return static_cast<v1::Strategy>(static_cast<int>(strategy) +
                                   v1::STRATEGY_AUTO);
}

Status ApplySearchOptions(const v1::SweepRequest& from, planner::Request& to) {
  return ApplyShared(from, to);
}

}  // namespace reprise::formats
