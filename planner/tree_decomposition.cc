// SPDX-License-Identifier: Apache-2.0
#include "planner/tree_decomposition.h"

#include <algorithm>
#include <queue>
#include <tuple>

namespace reprise::planner {
namespace {

// Of vertices with more neighbours the fill is not counted.
constexpr size_t kMostCounted = 100;

class Eliminator {
 public:
  Eliminator(int32_t vertex_count,
             std::span<const std::pair<int32_t, int32_t>> edges,
             int64_t most_ticks)
      : most_ticks_(most_ticks),
        neighbours_(vertex_count),
        eliminated_(vertex_count, 0),
        marked_(vertex_count, 0) {
    for (const auto& [a, b] : edges) {
      if (a == b) continue;
      neighbours_[a].push_back(b);
      neighbours_[b].push_back(a);
    }
    for (std::vector<int32_t>& all : neighbours_) {
      std::sort(all.begin(), all.end());
      all.erase(std::unique(all.begin(), all.end()), all.end());
      ticks_ += static_cast<int64_t>(all.size());
    }
  }

  TreeDecomposition Run() {
    const int32_t count = static_cast<int32_t>(neighbours_.size());
    tree_.home.assign(count, -1);
    for (int32_t v = 0; v < count; ++v) Push(v);
    while (!queue_.empty() && ticks_ < most_ticks_) {
      const auto [key, degree, v] = queue_.top();
      queue_.pop();
      if (eliminated_[v] != 0) continue;
      // What was eliminated meanwhile changes the figures of its neighbours
      // and, less often, of theirs.
      if (KeyOf(v) != Key{key, degree}) {
        Push(v);
        continue;
      }
      Eliminate(v);
    }
    Bag rest;
    for (int32_t v = 0; v < count; ++v) {
      if (eliminated_[v] == 0) rest.push_back(v);
    }
    if (!rest.empty()) {
      for (const int32_t v : rest) {
        tree_.home[v] = static_cast<int32_t>(tree_.bags.size());
      }
      tree_.bags.push_back(std::move(rest));
    }
    Connect();
    tree_.ticks = ticks_;
    return std::move(tree_);
  }

 private:
  using Bag = std::vector<int32_t>;
  using Key = std::pair<int64_t, int32_t>;  // fill, neighbours

  // Edges that are missing between the neighbours of a vertex, at most.
  Key KeyOf(int32_t v) {
    const Bag& around = neighbours_[v];
    const int64_t degree = static_cast<int64_t>(around.size());
    const int64_t most = degree * (degree - 1) / 2;
    ++ticks_;
    if (around.size() > kMostCounted || ticks_ > most_ticks_ / 2) {
      return {most, static_cast<int32_t>(degree)};
    }
    for (const int32_t u : around) marked_[u] = 1;
    int64_t twice = 0;
    for (const int32_t u : around) {
      ticks_ += static_cast<int64_t>(neighbours_[u].size());
      for (const int32_t w : neighbours_[u]) twice += marked_[w];
    }
    for (const int32_t u : around) marked_[u] = 0;
    return {most - twice / 2, static_cast<int32_t>(degree)};
  }
  void Push(int32_t v) {
    const Key key = KeyOf(v);
    queue_.emplace(key.first, key.second, v);
  }

  void Eliminate(int32_t v) {
    eliminated_[v] = 1;
    Bag around = std::move(neighbours_[v]);
    neighbours_[v].clear();
    for (const int32_t u : around) {
      Bag all;
      all.reserve(neighbours_[u].size() + around.size());
      std::set_union(neighbours_[u].begin(), neighbours_[u].end(),
                     around.begin(), around.end(), std::back_inserter(all));
      std::erase_if(all, [&](int32_t w) { return w == u || w == v; });
      neighbours_[u] = std::move(all);
      ticks_ += static_cast<int64_t>(neighbours_[u].size() + around.size());
    }
    for (const int32_t u : around) Push(u);
    tree_.home[v] = static_cast<int32_t>(tree_.bags.size());
    around.insert(std::lower_bound(around.begin(), around.end(), v), v);
    tree_.bags.push_back(std::move(around));
  }

  // A bag hangs on the home of the first to go of its other vertices. That one
  // is nearer to the root: vertices leave for good in the order of their homes.
  void Connect() {
    const int32_t count = static_cast<int32_t>(tree_.bags.size());
    tree_.parent.assign(count, -1);
    for (int32_t b = 0; b < count; ++b) {
      int32_t next = count;
      for (const int32_t v : tree_.bags[b]) {
        if (tree_.home[v] > b) next = std::min(next, tree_.home[v]);
      }
      if (next < count) tree_.parent[b] = next;
      tree_.width =
          std::max(tree_.width, static_cast<int>(tree_.bags[b].size()) - 1);
    }
  }

  const int64_t most_ticks_;
  std::vector<Bag> neighbours_;
  std::vector<uint8_t> eliminated_, marked_;
  std::priority_queue<std::tuple<int64_t, int32_t, int32_t>,
                      std::vector<std::tuple<int64_t, int32_t, int32_t>>,
                      std::greater<>>
      queue_;
  TreeDecomposition tree_;
  int64_t ticks_ = 0;
};

class Splitter {
 public:
  explicit Splitter(const TreeDecomposition& tree)
      : tree_(tree),
        beside_(tree.bags.size()),
        homes_(tree.bags.size(), 0),
        taken_(tree.bags.size(), 0),
        from_(tree.bags.size(), -1),
        weight_(tree.bags.size(), 0) {
    for (int32_t b = 0; b < static_cast<int32_t>(tree.bags.size()); ++b) {
      if (tree.parent[b] < 0) continue;
      beside_[b].push_back(tree.parent[b]);
      beside_[tree.parent[b]].push_back(b);
    }
    for (const int32_t b : tree.home) ++homes_[b];
    parts_.of.assign(tree.home.size(), -1);
  }

  Parts Run() {
    struct Piece {
      int32_t bag, above;
    };
    std::vector<Piece> open;
    for (int32_t b = static_cast<int32_t>(tree_.bags.size()); b-- > 0;) {
      if (tree_.parent[b] < 0) open.push_back({b, -1});
    }
    while (!open.empty()) {
      const Piece piece = open.back();
      open.pop_back();
      const int32_t centre = CentreOf(piece.bag);
      if (centre < 0) continue;
      taken_[centre] = 1;
      int32_t part = piece.above;
      for (const int32_t v : tree_.bags[centre]) {
        if (parts_.of[v] >= 0) continue;
        if (part == piece.above) part = AddPart(piece.above);
        parts_.of[v] = part;
        --homes_[tree_.home[v]];
      }
      for (const int32_t b : beside_[centre]) {
        if (taken_[b] == 0) open.push_back({b, part});
      }
    }
    return std::move(parts_);
  }

 private:
  int32_t AddPart(int32_t above) {
    const int32_t part = static_cast<int32_t>(parts_.parent.size());
    const int32_t depth = above < 0 ? 0 : parts_.depth[above] + 1;
    parts_.parent.push_back(above);
    parts_.depth.push_back(depth);
    parts_.most_depth = std::max(parts_.most_depth, depth);
    return part;
  }

  // The bag without which no side of a piece has more than half of its
  // vertices that are not separated yet; -1: all are.
  int32_t CentreOf(int32_t any) {
    order_.assign(1, any);
    from_[any] = -1;
    for (size_t i = 0; i < order_.size(); ++i) {
      for (const int32_t b : beside_[order_[i]]) {
        if (taken_[b] != 0 || b == from_[order_[i]]) continue;
        from_[b] = order_[i];
        order_.push_back(b);
      }
    }
    for (size_t i = order_.size(); i-- > 0;) {
      const int32_t b = order_[i];
      weight_[b] = homes_[b];
      for (const int32_t next : beside_[b]) {
        if (taken_[next] == 0 && next != from_[b]) weight_[b] += weight_[next];
      }
    }
    const int64_t all = weight_[any];
    if (all == 0) return -1;
    int32_t centre = any;
    for (bool moved = true; moved;) {
      moved = false;
      for (const int32_t b : beside_[centre]) {
        if (taken_[b] != 0 || b == from_[centre]) continue;
        if (2 * weight_[b] <= all) continue;
        centre = b;
        moved = true;
        break;
      }
    }
    return centre;
  }

  const TreeDecomposition& tree_;
  std::vector<std::vector<int32_t>> beside_;  // by bag: its neighbours
  std::vector<int32_t> homes_;  // by bag: vertices not separated yet
  std::vector<uint8_t> taken_;
  std::vector<int32_t> from_, order_;
  std::vector<int64_t> weight_;
  Parts parts_;
};

}  // namespace

TreeDecomposition Decompose(int32_t vertex_count,
                            std::span<const std::pair<int32_t, int32_t>> edges,
                            int64_t most_ticks) {
  return Eliminator(vertex_count, edges, most_ticks).Run();
}

int32_t Parts::Below(int32_t part, int32_t vertex) const {
  int32_t at = of[vertex];
  const int32_t wanted = part < 0 ? 0 : depth[part] + 1;
  while (at != part && at >= 0 && depth[at] > wanted) at = parent[at];
  return at;
}

Parts TakeApart(const TreeDecomposition& tree) { return Splitter(tree).Run(); }

}  // namespace reprise::planner
