// SPDX-License-Identifier: Apache-2.0
#include "planner/model/list_moves.h"

#include <algorithm>

namespace reprise::planner {

void DeleteWithFeeders(const Problem& problem, ExecList& list,
                       ExecList::Node rerun,
                       std::vector<ExecList::Node>& doomed) {
  doomed.assign(1, rerun);
  while (!doomed.empty()) {
    const ExecList::Node node = doomed.back();
    doomed.pop_back();
    // It may have been removed together with another one.
    if (!list.Has(node) || (node != rerun && !list.IsUnread(node))) continue;
    for (const ValueId u : problem.versions.Need(list.OpOf(node))) {
      const StorageId s = problem.versions.storage[u];
      const int32_t at = list.FirstEventFrom(s, node);
      const ExecList::Event& previous = list.Events(s)[at - 1];
      if (previous.make != kNoValue && list.IsRerun(previous.node)) {
        doomed.push_back(previous.node);
      }
    }
    list.Erase(node);
  }
}

ExecList::Node PlaceFor(const Problem& problem, const ExecList& list, OpId op,
                        ExecList::Node reader) {
  const OpId leads_to = list.LeadsTo(reader);
  const OpId at = problem.rules.LastRerun(op, leads_to);
  return at == leads_to ? reader : at;
}

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
