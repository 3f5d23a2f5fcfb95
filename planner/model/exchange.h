// SPDX-License-Identifier: Apache-2.0
//
// What searches of one step graph and one budget tell each other while they
// run. The planner has no threads: whoever runs several searches makes one of
// these, and any of them may call it at any time (formats/solve).
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "planner/model/step_graph.h"

namespace reprise::planner {

// What one of several searches does first: bounds, plans, or all of it.
enum class Part : uint8_t { kAll, kProve, kImprove };

class Exchange {
 public:
  // In terms of the graph that is searched, which all reduce alike.
  struct Found {
    int64_t peak_bytes = 0;
    int64_t time_ns = 0;
    std::vector<OpId> execs = {};
    std::string solver = {};
  };

  virtual ~Exchange() = default;

  // Tells of a schedule within the budget, and of a bound.
  virtual void Offer(const Found& found) = 0;
  virtual void OfferBound(int64_t added_ns) = 0;

  // The fastest schedule, where it takes less time than this; the best bound.
  virtual std::optional<Found> Faster(int64_t time_ns) = 0;
  virtual int64_t BoundNs() = 0;

  // Calls `mine` here and, until it has returned, `help` on threads of other
  // searches that come by; returns when all have left it. Whoever calls it
  // splits a piece of work: `mine` ends when all of it is done, `help` when
  // there is nothing more to help with.
  virtual void Together(const std::function<void()>& mine,
                        const std::function<void()>& help) {
    static_cast<void>(help);
    mine();
  }
};

}  // namespace reprise::planner
