// SPDX-License-Identifier: Apache-2.0
//
// The stacks of a memory snapshot as texts: the innermost frame outside of
// PyTorch, which names an allocation, and all frames, one a line. A list of
// frames may be shared by any number of events, and be of any length: what is
// looked at of it is bounded, and one that is kept is spelled out once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>

#include "formats/import/pickle_value.h"
#include "formats/import/recording.h"

namespace reprise::formats {

// Entries, frames and blocks have about ten keys. They may be shared by any
// number of events, and are searched again for each.
constexpr size_t kMostSnapshotKeys = 64;

// Truncates a text at a character boundary.
std::string_view Cut(std::string_view text, size_t most);

// Returns "train.py:12 loss" for the innermost frame outside PyTorch.
std::string NameOfStack(const PickleValue* frames);

// Returns the frames of a stack, innermost first, one a line:
// "/home/me/train.py:12 loss".
std::string LinesOfStack(const PickleValue* frames);

// The texts of stacks. One that many events share is spelled out once.
class StackTexts {
 public:
  struct Ids {
    uint32_t name = 0;
    uint32_t stack = 0;
  };

  Ids Of(const PickleValue* frames, RecordingNames& names);

 private:
  std::unordered_map<const PickleNode*, Ids> ids_;
};

}  // namespace reprise::formats
