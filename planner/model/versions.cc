// SPDX-License-Identifier: Apache-2.0
#include "planner/model/versions.h"

namespace reprise::planner {

Versions WalkVersions(const StepGraph& graph) {
  Versions walk;
  std::vector<int32_t> count(graph.storage_count(), 1);
  for (const Op& op : graph.ops) {
    for (const StorageId s : op.mutates) ++count[s];
  }
  walk.first_value.reserve(graph.storage_count() + 1);
  walk.first_value.push_back(0);
  for (StorageId s = 0; s < graph.storage_count(); ++s) {
    walk.first_value.push_back(walk.first_value.back() + count[s]);
    walk.storage.insert(walk.storage.end(), count[s], s);
  }
  walk.maker.assign(walk.storage.size(), kNoOp);

  std::vector<ValueId> current(walk.first_value.begin(),
                               walk.first_value.end() - 1);
  walk.need_begin.push_back(0);
  walk.make_begin.push_back(0);
  for (OpId o = 0; o < graph.op_count(); ++o) {
    const Op& op = graph.ops[o];
    for (const StorageId s : op.reads) walk.need.push_back(current[s]);
    for (const StorageId s : op.writes) walk.make.push_back(current[s]);
    for (const StorageId s : op.mutates) walk.make.push_back(++current[s]);
    for (size_t i = walk.make_begin.back(); i < walk.make.size(); ++i) {
      walk.maker[walk.make[i]] = o;
    }
    walk.need_begin.push_back(static_cast<int32_t>(walk.need.size()));
    walk.make_begin.push_back(static_cast<int32_t>(walk.make.size()));
  }
  return walk;
}

}  // namespace reprise::planner
