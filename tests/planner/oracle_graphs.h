// SPDX-License-Identifier: Apache-2.0
//
// Which random graphs a test with an oracle looks at, and what it found.
//
//   REPRISE_ORACLE_GRAPHS=10000      so many instead of the sample
//   REPRISE_ORACLE_FIRST=2500        the first of them, to work in pieces
//   REPRISE_ORACLE_SHOW=1            names the graphs that are not optimal
//
// Every graph has random numbers of its own, so that pieces see the same ones.
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

// The numbers of the graphs to look at: `sample` of them where nobody asks for
// more.
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

// Of the graphs for which a plan exists, how many have one, and the best one.
struct OracleShares {
  int feasible = 0, found = 0, optimal = 0;

  void Missed(int graph, int64_t budget) const {
    if (std::getenv("REPRISE_ORACLE_SHOW") == nullptr) return;
    std::printf("not optimal: graph %d budget %lld\n", graph,
                static_cast<long long>(budget));
  }

  // One in a hundred is left at most on graphs this small. A piece may have a
  // few more: whoever asks for pieces judges their sum.
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
