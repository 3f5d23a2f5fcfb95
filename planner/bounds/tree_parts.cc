// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <chrono>
#include <utility>

#include "planner/bounds/tree_grower.h"

namespace reprise::planner {
namespace {

// Larger certificates are not made.
constexpr int64_t kMostMultipliers = 400'000;
// How often a thread that waits for a part checks whether it should stop.
constexpr std::chrono::milliseconds kTreePatience{5};

}  // namespace

TreePart& TreeParts::Add(std::unique_ptr<TreePart> part) {
  const std::lock_guard lock(mutex_);
  TreePart& added = *parts_.emplace_back(std::move(part));
  // What the other part still grows comes before this part; what was cut off
  // from it earlier comes after.
  const auto from = std::find(order_.begin(), order_.end(), added.from);
  order_.insert(from == order_.end() ? from : from + 1, &added);
  added.dropped = added.from != nullptr && added.from->dropped;
  waiting_.push_back(&added);
  --idle_;
  came_by_ = false;
  changed_.notify_one();
  return added;
}

TreePart* TreeParts::Next(const std::function<bool()>& should_stop,
                          bool waits) {
  std::unique_lock lock(mutex_);
  if (!waits && waiting_.empty()) {
    came_by_ = true;
    return nullptr;
  }
  ++idle_;
  while (!over_ && waiting_.empty()) {
    if (growing_ == 0) {
      over_ = true;
      changed_.notify_all();
      break;
    }
    changed_.wait_for(lock, kTreePatience);
    if (should_stop && !over_ && should_stop()) {
      over_ = failed_ = true;
      changed_.notify_all();
    }
  }
  if (over_) return nullptr;
  TreePart* part = waiting_.front();
  waiting_.pop_front();
  ++growing_;
  return part;
}

void TreeParts::Done(const TreePart& part, bool grown) {
  const std::lock_guard lock(mutex_);
  --growing_;
  failed_ = failed_ || !grown;
  // The other parts must finish, in case they meet a solution before this one.
  if (!grown && !part.solved && !part.dropped) over_ = true;
  changed_.notify_all();
}

bool TreeParts::CountMultipliers(size_t count) {
  multipliers_ += static_cast<int64_t>(count);
  return multipliers_ <= kMostMultipliers;
}

int TreeParts::IterationsLeft() const {
  return static_cast<int>(
      std::clamp<int64_t>(limits_.most_iterations - iterations_, 0, 1'000'000));
}

void TreeParts::KeepFirst(TreePart& part, const std::vector<double>& solution) {
  const std::lock_guard lock(mutex_);
  if (part.dropped) return;
  part.solved = true;
  solution_ = solution;
  const auto at = std::find(order_.begin(), order_.end(), &part);
  for (auto behind = at + 1; behind != order_.end(); ++behind) {
    (*behind)->dropped = true;
  }
}

bool TreeParts::Lower(int64_t cost_ns, const std::vector<double>& solution) {
  const std::lock_guard lock(mutex_);
  if (solution_.empty() || cost_ns < solution_ns_) {
    solution_ = solution;
    solution_ns_ = cost_ns;
  }
  if (cost_ns >= added_ns_) return false;
  // Less the tolerance that IsProven allows.
  added_ns_ = cost_ns - cost_ns / 1'000'000;
  return true;
}

void TreeParts::KeepRoot(int64_t proven_ns, const verify::Node& root,
                         std::vector<uint8_t> basis) {
  const std::lock_guard lock(mutex_);
  root_ns_ = proven_ns;
  root_ = root;
  root_basis_ = std::move(basis);
}

std::vector<verify::Node> TreeParts::Assemble() const {
  std::vector<verify::Node> nodes;
  // How far each part is, from the root down to the one that is copied.
  struct Place {
    const TreePart* part;
    size_t node = 0, cut = 0;
  };
  std::vector<Place> stack;
  if (!parts_.empty()) stack.push_back({parts_.front().get()});
  while (!stack.empty()) {
    Place& place = stack.back();
    const TreePart& part = *place.part;
    const bool has_cut = place.cut < part.cut_off.size();
    const size_t end =
        has_cut ? part.cut_off[place.cut].first : part.nodes.size();
    nodes.insert(nodes.end(), part.nodes.begin() + std::ptrdiff_t(place.node),
                 part.nodes.begin() + std::ptrdiff_t(end));
    place.node = end;
    if (has_cut) {
      const TreePart* next = part.cut_off[place.cut++].second;
      stack.push_back({next});
    } else {
      stack.pop_back();
    }
  }
  return nodes;
}

}  // namespace reprise::planner
