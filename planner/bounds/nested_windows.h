// SPDX-License-Identifier: Apache-2.0
//
// The bound of several windows far apart, as one minimum cut.
//
// Windows t_1 < ... < t_K, each with the network of window_bound.h: a maker is
// on the sink's side if it runs again after t_k, a value if it is available
// from t_k on, which is to say present at t_k or made again later. Two kinds of
// arcs of infinite capacity say what every schedule satisfies besides:
//
//   R_o of t_k -> R_o of t_(k+1)     what runs again after t_(k+1) does so
//                                    after t_k, and is paid for only once
//   A_v of t_k -> A_v of t_(k+1)     what is available from t_(k+1) on and was
//                                    made before t_k is available from t_k on
//
// So with a price for the room of every window, the cut less the priced rooms
// is a lower bound, as for one window, and never below that of any one of them.
// It counts an op once that runs again several times, and so needs no program:
// where memory is short at two far places, as in the backward of a U-Net, it
// proves most of what a program of both windows does (certify_tree.h), in steps
// too long for one.
//
// The best prices are found by cutting planes (Kelley 1960): every cut bounds
// the bound at all prices from above. Every cut proves its own bound, so that
// an interruption takes nothing away. One cut is a max-flow over K networks.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "planner/bounds/max_flow.h"
#include "planner/model/certificate.h"
#include "planner/model/problem.h"

namespace reprise::planner {

class NestedWindows {
 public:
  // `windows` must be ascending.
  NestedWindows(const Problem& problem, const std::vector<OpId>& windows);

  struct Proof {
    int64_t added_ns = 0;
    // By window: a byte costs value / 2^shift ns.
    std::vector<verify::Multiplier> prices = {};
    int shift = 0;
  };
  // Changes the prices, at first `ns_per_byte` for all, until others would prove
  // little more. In builds without Clp, that is the only one.
  Proof Solve(int64_t budget_bytes, double ns_per_byte, int64_t most_ticks,
              const std::function<bool()>& should_stop);

  int64_t ticks() const {
    return flow_.ticks() + std::ssize(costs_) + std::ssize(values_);
  }

 private:
  // A maker or a value of one window.
  struct Part {
    int window = 0;
    int32_t id = 0;  // an op, or a value
    int arc = -1;    // its cost, or its bytes
    int node = -1, maker = -1;
  };
  // What a cut runs again, and how many bytes it saves at each window.
  struct Plane {
    double cost_ns = 0;
    std::vector<double> over_bytes = {};
  };

  MaxFlow Build();
  // Cuts at these prices; notes the bound that this proves. Returns nothing if
  // sums would be out of range.
  std::optional<Plane> Cut(const std::vector<double>& ns_per_byte);

  const Problem& problem_;
  const std::vector<OpId> windows_;
  std::vector<Part> costs_, values_;
  std::vector<int64_t> fixed_bytes_;  // by window: static, its own, forced
  std::vector<int64_t> room_;
  int64_t total_cost_ = 0, total_bytes_ = 0;
  Proof best_;
  MaxFlow flow_;
};

}  // namespace reprise::planner
