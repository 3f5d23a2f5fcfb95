// SPDX-License-Identifier: Apache-2.0
#include "planner/bounds/max_flow.h"

#include <algorithm>

namespace reprise::planner {

MaxFlow::MaxFlow(int node_count) : node_count_(node_count) {}

int MaxFlow::AddArc(int from, int to, int64_t capacity) {
  from_.push_back(from);
  to_.push_back(to);
  capacity_.push_back(capacity);
  return static_cast<int>(from_.size()) - 1;
}

void MaxFlow::Build() {
  begin_.assign(node_count_ + 1, 0);
  for (size_t arc = 0; arc < from_.size(); ++arc) {
    ++begin_[from_[arc] + 1];
    ++begin_[to_[arc] + 1];
  }
  for (int node = 0; node < node_count_; ++node) {
    begin_[node + 1] += begin_[node];
  }
  halves_.resize(2 * from_.size());
  half_of_.resize(from_.size());
  std::vector<int32_t> next(begin_.begin(), begin_.end() - 1);
  for (size_t arc = 0; arc < from_.size(); ++arc) {
    const int32_t forward = next[from_[arc]]++;
    const int32_t backward = next[to_[arc]]++;
    halves_[forward] = {.to = to_[arc], .reverse = backward, .residual = 0};
    halves_[backward] = {.to = from_[arc], .reverse = forward, .residual = 0};
    half_of_[arc] = forward;
  }
  level_.resize(node_count_);
  next_.resize(node_count_);
  queue_.resize(node_count_);
}

// Computes breadth-first distances in the residual network.
bool MaxFlow::Levels(int source, int sink) {
  std::fill(level_.begin(), level_.end(), -1);
  level_[source] = 0;
  int head = 0, tail = 0;
  queue_[tail++] = source;
  while (head < tail) {
    const int node = queue_[head++];
    // No early exit: the last round must reach everything, because its levels
    // are the cut.
    for (int32_t h = begin_[node]; h < begin_[node + 1]; ++h) {
      const Half& half = halves_[h];
      if (half.residual > 0 && level_[half.to] < 0) {
        level_[half.to] = level_[node] + 1;
        queue_[tail++] = half.to;
      }
    }
    ticks_ += begin_[node + 1] - begin_[node];
  }
  return level_[sink] >= 0;
}

// Sends one blocking flow, along paths kept as a list of halves.
int64_t MaxFlow::Augment(int source, int sink) {
  std::copy(begin_.begin(), begin_.end() - 1, next_.begin());
  int64_t flow = 0;
  int node = source;
  path_.clear();
  while (true) {
    if (node == sink) {
      int64_t push = kInfinite;
      for (const int32_t h : path_) push = std::min(push, halves_[h].residual);
      size_t keep = path_.size();
      for (size_t i = path_.size(); i-- > 0;) {
        Half& half = halves_[path_[i]];
        half.residual -= push;
        halves_[half.reverse].residual += push;
        if (half.residual == 0) keep = i;
      }
      ticks_ += static_cast<int64_t>(path_.size());
      flow += push;
      if (flow >= kInfinite) return flow;
      // Continue from the tail of the first saturated arc.
      path_.resize(keep);
      node = keep == 0 ? source : halves_[path_.back()].to;
      continue;
    }
    int32_t& h = next_[node];
    const int32_t end = begin_[node + 1];
    while (h < end && (halves_[h].residual == 0 ||
                       level_[halves_[h].to] != level_[node] + 1)) {
      ++h;
      ++ticks_;
    }
    if (h < end) {
      path_.push_back(h);
      node = halves_[h].to;
    } else {
      if (node == source) return flow;
      level_[node] = -1;  // dead end for the rest of this round
      node = halves_[halves_[path_.back()].reverse].to;
      path_.pop_back();
      ++next_[node];
    }
  }
}

int64_t MaxFlow::Solve(int source, int sink) {
  for (size_t arc = 0; arc < from_.size(); ++arc) {
    Half& forward = halves_[half_of_[arc]];
    forward.residual = capacity_[arc];
    halves_[forward.reverse].residual = 0;
  }
  int64_t flow = 0;
  while (Levels(source, sink)) {
    flow += Augment(source, sink);
    if (flow >= kInfinite) return kInfinite;
  }
  return flow;
}

}  // namespace reprise::planner
