// SPDX-License-Identifier: Apache-2.0
#include "server/service/memory/before_step.h"

#include <map>

namespace reprise::server {

namespace {

constexpr char kFoundByStep[] = "reprise.step_begin";

}  // namespace

void NameBefore(const planner::StepGraph& graph, RecordedStep& step) {
  std::multimap<int64_t, planner::Category> found;  // by bytes
  if (!graph.ops.empty() && graph.ops.front().name == kFoundByStep) {
    for (const planner::StorageId id : graph.ops.front().writes) {
      const planner::Storage& storage = graph.storages[static_cast<size_t>(id)];
      found.emplace(storage.bytes, storage.category);
    }
  }
  step.before_categories.assign(step.before_bytes.size(),
                                v1::CATEGORY_UNSPECIFIED);
  for (size_t i = 0; i < step.before_bytes.size(); ++i) {
    // Of the others a stack says what they are.
    if (step.lifetimes.all()[i].died == Allocation::kNever) continue;
    const auto same = found.find(step.before_bytes[i]);
    if (same == found.end()) continue;
    step.before_categories[i] = static_cast<v1::Category>(same->second);
    found.erase(same);
  }
  step.before_parts = planner::StaticMemory(graph);
  for (const auto& [bytes, category] : found) {
    step.before_parts.push_back({.category = category, .bytes = bytes});
  }
}

}  // namespace reprise::server
