// SPDX-License-Identifier: Apache-2.0
#include "planner/model/list_moves.h"

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

}  // namespace reprise::planner
