// SPDX-License-Identifier: Apache-2.0
//
// What a picture of addresses over time shows of many storages: which of them
// get a box of their own, which ranges of addresses are left out.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "reprise/v1/query.pb.h"

namespace reprise::server {

// As many boxes as a picture has at most.
inline constexpr size_t kMostBoxes = 4000;

// A storage in the window.
struct AddressLife {
  uint64_t address = 0;
  int64_t bytes = 0;
  int64_t from_ns = 0, to_ns = 0;
  bool before = false, after = false, at_peak = false;
  size_t index = 0;  // among the lifetimes of the step
};

// The part of the step that is drawn, and the size of the picture in pixels.
struct AddressView {
  int64_t from_ns = 0, to_ns = 0;
  int64_t width = 0, height = 0;
};

// Chooses what gets a box of its own, and writes into `answer` how much is
// folded, the ranges of addresses and the span at the peak. `alive` storages are
// in the window, and `area` is all their bytes x ns. Returns the boxes, the
// largest first.
std::vector<AddressLife> ChooseBoxes(const AddressView& view,
                                     std::vector<AddressLife> lives,
                                     uint64_t alive, double area,
                                     v1::Addresses& answer);

}  // namespace reprise::server
