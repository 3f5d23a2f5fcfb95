// SPDX-License-Identifier: Apache-2.0
#include "planner/verify/flow.h"

#include <algorithm>

namespace reprise::verify {

int Flow::AddArc(int from, int to) {
  from_.push_back(from);
  to_.push_back(to);
  capacity_.push_back(0);
  return static_cast<int>(from_.size()) - 1;
}

void Flow::Index() {
  if (!begin_.empty()) return;
  begin_.assign(nodes_ + 1, 0);
  for (size_t arc = 0; arc < from_.size(); ++arc) {
    ++begin_[from_[arc] + 1];
    ++begin_[to_[arc] + 1];
  }
  for (int node = 0; node < nodes_; ++node) begin_[node + 1] += begin_[node];
  ends_.resize(2 * from_.size());
  std::vector<int32_t> place(begin_.begin(), begin_.end() - 1);
  for (size_t arc = 0; arc < from_.size(); ++arc) {
    const auto end = static_cast<int32_t>(2 * arc);
    ends_[place[from_[arc]]++] = end;
    ends_[place[to_[arc]]++] = end + 1;
  }
}

// Computes how many arcs with remaining capacity each node is from the sink.
bool Flow::FindLevels(int source, int sink) {
  level_.assign(nodes_, -1);
  queue_.clear();
  queue_.push_back(sink);
  level_[sink] = 0;
  for (size_t i = 0; i < queue_.size(); ++i) {
    const int node = queue_[i];
    if (node == source) break;
    for (int32_t e = begin_[node]; e < begin_[node + 1]; ++e) {
      const int before = Head(ends_[e]);
      if (level_[before] < 0 && Left(ends_[e] ^ 1) > 0) {
        level_[before] = level_[node] + 1;
        queue_.push_back(before);
      }
    }
  }
  return level_[source] >= 0;
}

bool Flow::Send(int source, int sink) {
  current_.assign(begin_.begin(), begin_.end() - 1);
  std::vector<int32_t> path;
  int node = source;
  while (true) {
    if (node == sink) {
      Wide least = kInfinite;
      for (const int32_t end : path) least = std::min(least, Left(end));
      // Arcs of kInfinite never run out: after all finite flows, half of the
      // capacity remains.
      if (least > kInfinite / 2) return true;
      size_t cut = path.size();
      for (size_t i = path.size(); i-- > 0;) {
        sent_[path[i] >> 1] += (path[i] & 1) != 0 ? -least : least;
        if (Left(path[i]) == 0) cut = i;
      }
      node = (path[cut] & 1) != 0 ? to_[path[cut] >> 1] : from_[path[cut] >> 1];
      path.resize(cut);
      continue;
    }
    int32_t& e = current_[node];
    while (
        e < begin_[node + 1] &&
        (Left(ends_[e]) == 0 || level_[Head(ends_[e])] != level_[node] - 1)) {
      ++e;
    }
    if (e < begin_[node + 1]) {
      path.push_back(ends_[e]);
      node = Head(ends_[e]);
      continue;
    }
    if (node == source) return false;
    level_[node] = -1;  // nothing more passes through it
    node = Head(path.back() ^ 1);
    path.pop_back();
  }
}

Wide Flow::Value(int source, int sink) const {
  std::vector<Wide> balance(nodes_, 0);
  for (size_t arc = 0; arc < from_.size(); ++arc) {
    if (sent_[arc] < 0 || sent_[arc] > capacity_[arc]) return -1;
    balance[from_[arc]] -= sent_[arc];
    balance[to_[arc]] += sent_[arc];
  }
  for (int node = 0; node < nodes_; ++node) {
    if (node != source && node != sink && balance[node] != 0) return -1;
  }
  return balance[sink];
}

Wide Flow::Solve(int source, int sink) {
  Index();
  sent_.assign(from_.size(), 0);
  while (FindLevels(source, sink)) {
    if (Send(source, sink)) return kInfinite;
  }
  return Value(source, sink);
}

}  // namespace reprise::verify
