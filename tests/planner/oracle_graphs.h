// SPDX-License-Identifier: Apache-2.0
//
// Selects the random graphs that a test with an oracle checks, and counts what
// it found.
//
//   REPRISE_ORACLE_GRAPHS=10000   checks this many instead of the sample
//   REPRISE_ORACLE_FIRST=2500     the first of them, to split the work
//   REPRISE_ORACLE_SHOW=1         names the graphs that are not optimal
//
// Every graph has its own random numbers, so splitting the work does not change
// them.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <numeric>
#include <vector>

#include "planner/model/random.h"

namespace reprise::planner {

inline int OracleNumber(const char* name, int otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr ? otherwise : std::max(0, std::atoi(text));
}

// Returns the numbers of the graphs to check: `sample` of them unless the
// environment asks for more.
inline std::vector<int> OracleGraphs(int sample) {
  const int count = std::max(1, OracleNumber("REPRISE_ORACLE_GRAPHS", sample));
  std::vector<int> graphs(static_cast<size_t>(count));
  std::iota(graphs.begin(), graphs.end(),
            OracleNumber("REPRISE_ORACLE_FIRST", 0));
  return graphs;
}

inline Random OracleRandom(uint64_t test, int graph) {
  return Random(test << 32 | static_cast<uint64_t>(graph));
}

// Of the graphs for which a plan exists: how many got one, and how many the
// best one.
struct OracleShares {
  int feasible = 0, found = 0, optimal = 0;

  void Missed(int graph, int64_t budget) const {
    if (std::getenv("REPRISE_ORACLE_SHOW") == nullptr) return;
    std::printf("not optimal: graph %d budget %lld\n", graph,
                static_cast<long long>(budget));
  }

  // At most one in a hundred may miss the optimum on graphs this small. A part
  // of the graphs may miss a few more: whoever splits the work judges the sum.
  void Expect99Percent() const {
    testing::Test::RecordProperty("feasible", feasible);
    testing::Test::RecordProperty("found", found);
    testing::Test::RecordProperty("optimal", optimal);
    std::printf("of %d graphs with a plan %d have one, %d the best\n", feasible,
                found, optimal);
    const bool piece = std::getenv("REPRISE_ORACLE_GRAPHS") != nullptr;
    const int least = feasible * 99 / 100 - (piece ? 3 : 0);
    EXPECT_GE(found, least) << "of " << feasible;
    EXPECT_GE(optimal, least) << "of " << feasible;
  }
};

}  // namespace reprise::planner
