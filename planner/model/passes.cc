// SPDX-License-Identifier: Apache-2.0
#include "planner/model/passes.h"

namespace reprise::planner {

void PassLog::Add(std::string_view name, const State& now) {
  if (Find(name) == nullptr) lines_.push_back({.name = name});
  for (PassLine& line : lines_) {
    if (line.name != name) continue;
    ++line.runs;
    line.ticks += now.ticks - last_.ticks;
    line.bound_gain_ns += now.bound_ns - last_.bound_ns;
    if (last_.added_ns >= 0) {
      line.plan_gain_ns += last_.added_ns - now.added_ns;
    } else if (now.added_ns >= 0) {
      line.first_added_ns = now.added_ns;
    }
  }
  last_ = now;
}

int PassLog::Runs(std::string_view name) const {
  const PassLine* line = Find(name);
  return line == nullptr ? 0 : line->runs;
}

bool PassLog::FoundFirst(std::string_view name) const {
  const PassLine* line = Find(name);
  return line != nullptr && line->first_added_ns >= 0;
}

const PassLine* PassLog::Find(std::string_view name) const {
  for (const PassLine& line : lines_) {
    if (line.name == name) return &line;
  }
  return nullptr;
}

}  // namespace reprise::planner
