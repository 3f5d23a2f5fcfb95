// SPDX-License-Identifier: Apache-2.0
//
// What searches of the same step graph and budget tell each other while they
// run. The planner has no threads: a caller that runs several searches
// implements this interface, and any of them may call it at any time
// (formats/solve).
#pragma once

#include <cstdint>
#include <functional>
#include <optional>

#include "planner/model/archive.h"

namespace reprise::planner {

// What one of several searches works on first: bounds, plans, or everything.
enum class Part : uint8_t { kAll, kProve, kImprove };

class Exchange {
 public:
  virtual ~Exchange() = default;

  // Offers a schedule within the budget, or a bound, to the others. Schedules
  // are in terms of the graph that is searched; all searches reduce it alike.
  virtual void Offer(const Archive::Point& found) = 0;
  virtual void OfferBound(int64_t added_ns) = 0;

  // Returns the fastest schedule if it takes less than `time_ns`; and the best
  // bound.
  virtual std::optional<Archive::Point> Faster(int64_t time_ns) = 0;
  virtual int64_t BoundNs() = 0;

  // Splits a piece of work: calls `mine` on this thread and, until it has
  // returned, `help` on threads of other searches, as often as they are free.
  // `mine` must return when all of the work is done, `help` when there is
  // nothing to help with at the moment. Returns when all have returned.
  virtual void Together(const std::function<void()>& mine,
                        const std::function<void()>& help) {
    static_cast<void>(help);
    mine();
  }
};

}  // namespace reprise::planner
