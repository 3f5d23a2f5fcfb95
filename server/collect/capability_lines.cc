// SPDX-License-Identifier: Apache-2.0
#include "server/collect/capability_lines.h"

#include <string_view>

namespace reprise::server {

namespace {

// Words for the levels of reprise_caps.cupti.
std::string_view CuptiWords(std::string_view level) {
  if (level == "0") return "no";
  if (level == "1") return "no, allocations only";
  if (level == "2") return "kernels";
  if (level == "3") return "kernels and ops";
  return level;
}

}  // namespace

v1::Caps CapabilitiesOf(const std::vector<std::string>& lines) {
  v1::Caps caps;
  for (const std::string& text : lines) {
    const std::string_view line = text;
    const size_t equals = line.find('=');
    const std::string_view name = line.substr(0, equals);
    std::string_view value;
    std::string_view why;
    if (equals != std::string_view::npos) value = line.substr(equals + 1);
    // A holder's name may have spaces; the others have a value and a reason.
    const size_t space =
        name == "cupti_holder" ? std::string_view::npos : value.find(' ');
    if (space != std::string_view::npos) {
      why = value.substr(space + 1);
      value = value.substr(0, space);
    }
    // No drops, or no version: omit the line.
    const bool silent = why.empty() && (value.empty() || value == "0");
    if (name.empty() || silent) continue;
    v1::Capability& one = *caps.add_capabilities();
    one.set_name(std::string(name));
    one.set_value(std::string(name == "cupti" ? CuptiWords(value) : value));
    one.set_why(std::string(why));
  }
  return caps;
}

}  // namespace reprise::server
