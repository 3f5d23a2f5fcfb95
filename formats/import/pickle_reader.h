// SPDX-License-Identifier: Apache-2.0
//
// Reads a pickle of plain data, protocols 2 to 5, as a stream and without ever
// running anything: containers, text, bytes, numbers, None. A pickle is a
// program; of its instructions those that import, call or build are refused by
// name and byte, and so is every one that plain data does not need.
//
// A pickle of a gigabyte does not fit into memory, and its memo keeps all that
// was ever made. So the caller may take the items of long lists as they come:
//
//   root dict ── "device_traces" ── [ [ item, item, ... ], ... ]
//                                       ▲ taken, then forgotten
//
// A taken item is forgotten with the containers in it, but for what later items
// share: texts, dicts of plain values that have the key `shared_dict` (stack
// frames), and lists of such dicts under the key `shared_list` (stacks, which
// PyTorch shares between a block and the events of its memory). Equal stacks
// are kept once, and none is kept any more when half of what may be held is
// taken. A later reference to something forgotten reads as kGone. What is held
// at any time is limited; a pickle that needs more is refused.
//
// O(bytes) time; O(what is held) memory. Opcodes: CPython's
// Lib/pickletools.py.
#pragma once

#include <cstdint>
#include <functional>
#include <string_view>

#include "base/status.h"
#include "formats/import/byte_source.h"
#include "formats/import/pickle_value.h"

namespace reprise::formats {

struct PickleLimits {
  uint64_t held_bytes = 256 << 20;  // of all values at any time
  uint32_t text_bytes = 16 << 20;   // of one text
  int depth = 64;
  std::string_view shared_dict = "filename";
  std::string_view shared_list = "frames";
  // Texts under this key are every item's own, and forgotten with it.
  std::string_view own_text = "user_metadata";
};

// Is asked when items are put into a list. `key` is the text of the dict entry
// that the list, or the list of lists around it, is made for; `nested` how many
// lists stand between; `position` where the innermost stands in the outer one.
// Returns whether it took the item.
struct PickleSpot {
  std::string_view key;
  int nested = 0;
  size_t position = 0;
};
using TakePickleItem =
    std::function<StatusOr<bool>(const PickleSpot&, const PickleValue& item)>;

// The value on top when the pickle ends, without the items that were taken.
// INVALID_ARGUMENT `byte 17: ...`; RESOURCE_EXHAUSTED beyond a limit.
StatusOr<PickleValue> ReadPickle(ByteSource& source, const TakePickleItem& take,
                                 const PickleLimits& limits = {});

}  // namespace reprise::formats
