// SPDX-License-Identifier: Apache-2.0
//
// Reads a pickle of plain data, protocols 2 to 5, as a stream and without
// executing any of its code: containers, text, bytes, numbers, None. A pickle
// is a program; instructions that import, call or construct objects are
// rejected, with their name and byte, and so are all others that plain data
// does not need.
//
// A pickle of a gigabyte does not fit into memory, and its memo refers to
// everything that was ever created. So the caller may take the items of long
// lists as they are read:
//
//   root dict ── "device_traces" ── [ [ item, item, ... ], ... ]
//                                       ▲ taken, then forgotten
//
// A taken item is forgotten together with the containers in it, except for what
// later items share: texts, dicts of plain values with the key `shared_dict`
// (stack frames), and lists of such dicts under the key `shared_list` (stacks,
// which PyTorch shares between a block and the events of its memory). Equal
// stacks are kept once; when half of the memory limit is used, no further ones
// are kept. A later reference to a forgotten value reads as kGone. Memory is
// limited; a pickle that needs more is rejected.
//
// O(bytes) time; O(values held) memory. Opcodes: CPython's Lib/pickletools.py.
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
  // Texts under this key are not shared between items, and forgotten with their
  // item.
  std::string_view own_text = "user_metadata";
};

// Called when an item is appended to a list. `key` is the text of the dict
// entry that holds the list, or the list of lists around it; `nested` is the
// number of lists in between; `position` is the index of the inner list in the
// outer one. Returns whether the caller took the item.
struct PickleSpot {
  std::string_view key;
  int nested = 0;
  size_t position = 0;
};
using TakePickleItem =
    std::function<StatusOr<bool>(const PickleSpot&, const PickleValue& item)>;

// Returns the value on top when the pickle ends, without the items that were
// taken. INVALID_ARGUMENT `byte 17: ...`; RESOURCE_EXHAUSTED beyond a limit.
StatusOr<PickleValue> ReadPickle(ByteSource& source, const TakePickleItem& take,
                                 const PickleLimits& limits = {});

}  // namespace reprise::formats
