// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <map>
#include <utility>

#include "server/service/memory/recorded_step.h"

namespace reprise::server {
namespace {

constexpr size_t kLifetimeFan = 16;

constexpr char kFoundByStep[] = "reprise.step_begin";

}  // namespace

void Lifetimes::Build(std::vector<Allocation> allocations) {
  all_ = std::move(allocations);
  latest_.clear();
  std::vector<uint32_t> level;
  for (size_t at = 0; at < all_.size(); at += kLifetimeFan) {
    uint32_t latest = 0;
    for (size_t i = at; i < std::min(at + kLifetimeFan, all_.size()); ++i) {
      latest = std::max(latest, all_[i].died);
    }
    level.push_back(latest);
  }
  while (level.size() > 1) {
    std::vector<uint32_t> above;
    for (size_t at = 0; at < level.size(); at += kLifetimeFan) {
      above.push_back(*std::max_element(
          level.begin() + static_cast<ptrdiff_t>(at),
          level.begin() + static_cast<ptrdiff_t>(
                              std::min(at + kLifetimeFan, level.size()))));
    }
    latest_.push_back(std::exchange(level, std::move(above)));
  }
  if (!level.empty()) latest_.push_back(std::move(level));
}

void Lifetimes::Visit(size_t level, size_t node, size_t born_until,
                      uint32_t event,
                      const std::function<void(size_t)>& visit) const {
  // Nobody in this stretch lives longer.
  if (latest_[level][node] <= event) return;
  const size_t first = node * kLifetimeFan;
  if (level > 0) {
    size_t leaf =
        kLifetimeFan * kLifetimeFan;  // allocations below a child of this level
    for (size_t l = 1; l < level; ++l) leaf *= kLifetimeFan;
    const size_t last =
        std::min(first + kLifetimeFan, latest_[level - 1].size());
    for (size_t child = first; child < last; ++child) {
      if (child * (leaf / kLifetimeFan) >= born_until) return;
      Visit(level - 1, child, born_until, event, visit);
    }
    return;
  }
  for (size_t i = first; i < std::min(first + kLifetimeFan, born_until); ++i) {
    if (all_[i].died > event) visit(i);
  }
}

void Lifetimes::VisitAlive(
    uint32_t event, const std::function<void(size_t index)>& visit) const {
  // Those from before come first: shift their birth below all events.
  const auto born = [](const Allocation& one) -> int64_t {
    return one.born == Allocation::kBefore ? int64_t{-1} : int64_t{one.born};
  };
  const auto after = std::upper_bound(
      all_.begin(), all_.end(), static_cast<int64_t>(event),
      [&](int64_t at, const Allocation& one) { return at < born(one); });
  const auto born_until = static_cast<size_t>(after - all_.begin());
  if (born_until == 0) return;
  Visit(latest_.size() - 1, 0, born_until, event, visit);
}

size_t Lifetimes::MemoryBytes() const {
  size_t bytes = all_.capacity() * sizeof(Allocation);
  for (const auto& level : latest_)
    bytes += level.capacity() * sizeof(uint32_t);
  return bytes;
}

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
