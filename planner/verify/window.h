// SPDX-License-Identifier: Apache-2.0
//
// The bound of one window, checked: kWindow of certificate.h.
//
// While op t first runs, every value made before it that a later op, or the
// end, reads is present, or its maker runs again later. With the values that
// are surely there taken out of the room, what is left is: choose what is
// present within the room and what runs again, so that whatever runs again
// finds its own inputs. At a price per byte of the room that is a minimum cut:
//
//   source -> maker        time of a re-run; infinite: it may not run again
//   maker of v -> v        price * bytes(v)     (cut: v is present)
//   v -> sink              infinite where t or a later op reads v
//   u -> maker             infinite where the maker reads u
//
// so the value of any flow, less price * room, is a lower bound of the time
// that a schedule adds. With all times 0 and a price of 1 the flow is a lower
// bound of the bytes that must be present.
//
// Branched on v: present, its bytes are taken out of the room and its arc has
// no capacity; made again, its arc is infinite.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "planner/verify/facts.h"
#include "planner/verify/flow.h"

namespace reprise::verify {

class Window {
 public:
  Window(const Facts& facts, OpId at);

  // Whether a tree may branch on the value.
  bool Has(Value v) const {
    return v >= 0 && v < facts_.value_count && node_[v] >= 0;
  }
  // -1: free; 1: present; 0: made again.
  void Branch(Value v, int present) { branched_[v] = present; }

  // Least added time within the budget at the price of a leaf, given the
  // branchings; kNothing where no schedule obeys them. INVALID_ARGUMENT where
  // the leaf's numbers are out of range.
  static constexpr int64_t kNothing = int64_t{1} << 62;
  StatusOr<int64_t> AddedNs(const Node& leaf, int64_t budget_bytes);
  // No budget below this has a schedule that obeys the branchings.
  int64_t LeastBytes();

 private:
  void FindSurelyPresent();
  void Build();
  int64_t RoomTaken() const;

  const Facts& facts_;
  const OpId at_;
  std::vector<uint8_t> sure_;     // by value
  std::vector<uint8_t> wanted_;   // by value: read at t or later
  std::vector<int8_t> branched_;  // by value
  std::vector<int32_t> node_;     // by value; -1: not in the network
  int64_t sure_bytes_ = 0;        // static, of t itself, surely present
  struct Arc {
    int arc;
    int32_t id;  // an op, or a value
  };
  std::vector<Arc> reruns_, keeps_, infinite_;
  Flow flow_{0};
};

}  // namespace reprise::verify
