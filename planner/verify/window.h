// SPDX-License-Identifier: Apache-2.0
//
// Verifies the bound of one window: kWindow of certificate.h.
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
// Branching on v: if present, its bytes are subtracted from the room and its
// arc gets no capacity; if recomputed, its arc is infinite.
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

  // Returns whether a tree may branch on the value.
  bool Has(Value v) const {
    return v >= 0 && v < facts_.value_count && node_[v] >= 0;
  }
  // Sets a branching: -1 free; 1 present; 0 recomputed.
  void Branch(Value v, int present) { branched_[v] = present; }

  // Returns the least added time within the budget that the price of a leaf
  // proves under the branchings; kNothing if no schedule satisfies them.
  // INVALID_ARGUMENT if the leaf's numbers are out of range.
  static constexpr int64_t kNothing = int64_t{1} << 62;
  StatusOr<int64_t> AddedNs(const Node& leaf, int64_t budget_bytes);
  // Returns a budget below which no schedule satisfies the branchings.
  int64_t LeastBytes();

 private:
  // Finds the values that are always present at the window, and their bytes.
  void FindSurelyPresent();
  // Builds the network of the file comment.
  void Build();
  // Returns the bytes taken by what is always present and by values fixed as
  // present.
  int64_t RoomTaken() const;

  const Facts& facts_;
  const OpId at_;
  std::vector<uint8_t> sure_;     // by value
  std::vector<uint8_t> wanted_;   // by value: read at t or later
  std::vector<int8_t> branched_;  // by value
  std::vector<int32_t> node_;     // by value; -1: not in the network
  int64_t sure_bytes_ = 0;        // static, t's own, always present
  struct Arc {
    int arc;
    int32_t id;  // an op, or a value
  };
  std::vector<Arc> reruns_, keeps_, infinite_;
  Flow flow_{0};
};

}  // namespace reprise::verify
