// SPDX-License-Identifier: Apache-2.0
#include "planner/model/unread.h"

#include <algorithm>

namespace reprise::planner {

std::vector<OpId> WithoutUnread(const Problem& problem,
                                const std::vector<OpId>& execs) {
  const Versions& versions = problem.versions;
  std::vector<uint8_t> wanted(versions.value_count(), 0);
  for (const ValueId v : problem.end_need) wanted[v] = 1;
  std::vector<int32_t> runs(problem.op_count, 0);
  for (const OpId o : execs) ++runs[o];
  std::vector<OpId> kept;
  for (size_t i = execs.size(); i-- > 0;) {
    const OpId o = execs[i];
    const auto make = versions.Make(o);
    const bool read = std::any_of(make.begin(), make.end(),
                                  [&](ValueId v) { return wanted[v] != 0; });
    if (runs[o]-- > 1 && !read) continue;
    for (const ValueId v : make) wanted[v] = 0;
    for (const ValueId v : versions.Need(o)) wanted[v] = 1;
    kept.push_back(o);
  }
  std::reverse(kept.begin(), kept.end());
  return kept;
}

}  // namespace reprise::planner
