// SPDX-License-Identifier: Apache-2.0
//
// Memory snapshots of PyTorch, written opcode by opcode.
#pragma once

#include <string>
#include <vector>

namespace reprise::formats {

// A text and a number as pickles of protocol 2 have them.
inline std::string Text(const std::string& text) {
  return std::string("X") + static_cast<char>(text.size()) +
         std::string(3, '\0') + text;
}
inline std::string Int(int value) {
  std::string out = "J";
  for (int i = 0; i < 4; ++i) out += static_cast<char>(value >> (8 * i));
  return out;
}
// An event of a trace.
inline std::string Event(const std::string& action, int address, int size,
                         int us) {
  return "}(" + Text("action") + Text(action) + Text("addr") + Int(address) +
         Text("size") + Int(size) + Text("time_us") + Int(us) + "u";
}
// Returns a snapshot of one segment with `live` bytes in use at the end.
inline std::string Pickle(int live, const std::vector<std::string>& events) {
  std::string out = std::string("\x80\x02", 2) + "}(" + Text("segments") + "](";
  if (live > 0) {
    out += "}(" + Text("total_size") + Int(live + 100) + Text("blocks") +
           "]}(" + Text("state") + Text("active_allocated") + Text("size") +
           Int(live) + "uau";
  }
  out += "e" + Text("device_traces") + "](](";
  for (const std::string& event : events) out += event;
  return out + "eeu.";
}

}  // namespace reprise::formats
