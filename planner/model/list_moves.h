// SPDX-License-Identifier: Apache-2.0
//
// Changes of a list of execs that take several inserts or erasures.
#pragma once

#include <vector>

#include "planner/model/exec_list.h"

namespace reprise::planner {

// Removes a re-run and those that only fed it. `doomed` is scratch.
void DeleteWithFeeders(const Problem& problem, ExecList& list,
                       ExecList::Node rerun,
                       std::vector<ExecList::Node>& doomed);

// A re-run of an older version destroys the newer one, so that an op that reads
// the newer one later needs it recomputed: calls `remake(value, reader)` for
// each. Returns false as soon as that does.
template <typename RemakeBefore>
bool RemakeNewer(const Problem& problem, const ExecList& list,
                 ExecList::Node rerun, const RemakeBefore& remake) {
  const Versions& versions = problem.versions;
  for (const ValueId v : versions.Make(list.OpOf(rerun))) {
    const StorageId s = versions.storage[v];
    if (versions.Last(s) == versions.first_value[s]) continue;
    const std::vector<ExecList::Event>& events = list.Events(s);
    ValueId present = v;
    for (size_t i = list.FirstEventFrom(s, rerun) + 1; i < events.size(); ++i) {
      if (events[i].starts) break;
      if (events[i].need != kNoValue && events[i].need != present) {
        if (!remake(events[i].need, events[i].node)) return false;
        break;
      }
      present = events[i].After();
    }
  }
  return true;
}

}  // namespace reprise::planner
