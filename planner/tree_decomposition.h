// SPDX-License-Identifier: Apache-2.0
//
// Tree decompositions of undirected graphs, and the separators in them.
//
// A tree decomposition is a tree of *bags* of vertices: every edge lies in
// some bag, and the bags that hold a vertex are connected. So a bag separates
// what lies on its sides, and where all bags are small the graph can be taken
// apart again and again by few vertices at a time: a chain, a ladder, a step of
// a network with short skips. The largest bag less one is the width.
//
// Vertices are eliminated one after the other: a vertex and its neighbours are
// a bag, and its neighbours become a clique. The next one is the one that adds
// the fewest edges (*minimum fill*; Bodlaender and Koster, Treewidth
// computations I, 2010); where the ticks for that are spent, or a vertex has
// many neighbours, the one with the fewest neighbours. Where all ticks are
// spent, the vertices that are left are one bag: a decomposition still, if a
// wide one.
//
// O(vertices * width^2) ticks where they are enough.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

namespace reprise::planner {

struct TreeDecomposition {
  std::vector<std::vector<int32_t>> bags;  // ascending vertices
  std::vector<int32_t> parent;             // by bag; -1: a root
  // By vertex: the bag nearest to its root that holds it.
  std::vector<int32_t> home;
  int width = 0;
  int64_t ticks = 0;
};

// Edges may come twice and in any direction; a vertex is no neighbour of
// itself.
TreeDecomposition Decompose(int32_t vertex_count,
                            std::span<const std::pair<int32_t, int32_t>> edges,
                            int64_t most_ticks);

// A graph taken apart by separators. A part is a set of vertices; its
// separator splits the rest of it into parts with no edge between them, each at
// most half as large. Every vertex is in one separator.
struct Parts {
  std::vector<int32_t> parent;  // by part; -1: a component of the graph
  std::vector<int32_t> depth;   // by part
  std::vector<int32_t> of;      // by vertex: the part it separates
  // The part of the next level that holds a vertex of `part`, or `part` where
  // the vertex separates it.
  int32_t Below(int32_t part, int32_t vertex) const;
  int most_depth = 0;
};

// The separators are centroids of the trees. O(bags * log bags + size of bags).
Parts TakeApart(const TreeDecomposition& tree);

}  // namespace reprise::planner
