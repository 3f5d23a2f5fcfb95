// SPDX-License-Identifier: Apache-2.0
//
// Verifies the bound of one window, or of several nested ones: kWindow and
// kNested of certificate.h.
//
// While op t first runs, every value made before it that a later op or the end
// reads is present, or its maker runs again later. Values that are always
// present are subtracted from the room. What remains is to choose what is
// present within the room and what runs again, such that whatever runs again
// finds its inputs. With a price per byte of the room, that is a minimum cut:
//
//   source -> maker        time of a re-run; infinite if it may not run again
//   maker of v -> v        price * bytes(v)     (cut: v is present)
//   v -> sink              infinite if t or a later op reads v
//   u -> maker             infinite if the maker reads u
//
// so the value of any flow, less price * room, is a lower bound of the time
// that a schedule adds. With all times 0 and a price of 1, the flow is a lower
// bound of the bytes that must be present.
//
// Of several windows t_1 < t_2 < ..., each has this network, its own room and
// its own price. What runs again after t_(k+1) does so after t_k, and is paid
// for once; what can be had from t_(k+1) on (present, or made again later) and
// was made before t_k can be had from t_k on:
//
//   maker at t_k -> maker at t_(k+1), v at t_k -> v at t_(k+1)      infinite
//
// A maker's time is on its arc at the first window that has it.
//
// Where the executor has a link to host memory, one window may leave a value
// there: nothing is present for sure then but what t reads and what the program
// holds. Three kinds of rows limit that (numbered as in certificate.h):
//
//   out j   copies out of what is made at j or later end before t starts, and
//           begin after j ends
//   in k    copies back of what is read next by k or earlier, k > t, begin after
//           t ends, and end before k starts; what runs again after t takes from
//           the time that is added there
//   host    bytes on the host
//
// A leaf prices them, each way at most 1 ns per ns; a value then costs the
// cheaper of its bytes here and its copies, and re-runs what (in) leaves.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "planner/verify/facts.h"
#include "planner/verify/flow.h"

namespace reprise::verify {

class Window {
 public:
  // `at` must be ascending.
  Window(const Facts& facts, std::span<const OpId> at);

  // Returns the least added time within the budget that the price of a leaf
  // proves; kNothing if no schedule fits. INVALID_ARGUMENT if the leaf's numbers
  // are out of range.
  static constexpr int64_t kNothing = int64_t{1} << 62;
  StatusOr<int64_t> AddedNs(const Node& leaf, int64_t budget_bytes);
  // Returns a budget below which no schedule fits, by the first window.
  int64_t LeastBytes();

 private:
  // One of the windows.
  struct Place {
    OpId at = 0;
    std::vector<uint8_t> sure = {};    // by value: always present
    std::vector<uint8_t> wanted = {};  // by value: read at t or later
    std::vector<uint8_t> early = {};   // by value: read before re-runs may be
    std::vector<int32_t> node = {};    // by value; -1: not in the network
    std::vector<int32_t> maker = {};   // by op: its node, or -1
    int64_t sure_bytes = 0;            // static, t's own, always present
  };

  // Finds the values that are always present at the window, and their bytes.
  void FindSurelyPresent(Place& place) const;
  // Builds the network of the file comment.
  void Build();
  // What the rows of the link cost, in units of the leaf's scale.
  struct LinkPrices {
    std::vector<Wide> of_value = {};  // by value: its copies and host bytes
    Wide given = 0;                   // the rows' right sides
    Wide ins = 0;                     // sum of (in)
  };
  // INVALID_ARGUMENT if the leaf prices no row, or one too high.
  StatusOr<LinkPrices> PriceLink(const Node& leaf, Wide unit) const;
  const Facts& facts_;
  std::vector<Place> places_;
  struct Arc {
    int arc;
    int32_t id;  // an op, or a value
    size_t window = 0;
  };
  std::vector<Arc> reruns_, keeps_;
  Flow flow_{0};
};

}  // namespace reprise::verify
