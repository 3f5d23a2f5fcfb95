// SPDX-License-Identifier: Apache-2.0
#include "server/service/memory/memory_curve.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <random>
#include <set>
#include <span>
#include <vector>

#include "server/service/memory/evidence.h"
#include "server/service/memory/recorded_step.h"

namespace reprise::server {
namespace {

using ::testing::ElementsAreArray;

struct Walk {
  std::vector<int64_t> times{0};
  std::vector<int64_t> bytes{1000};
};

// A random walk in which several events may have the same time.
Walk RandomWalk(int events, uint32_t seed) {
  std::mt19937 random(seed);
  Walk walk;
  for (int i = 0; i < events; ++i) {
    walk.times.push_back(walk.times.back() + random() % 4);
    walk.bytes.push_back(static_cast<int64_t>(random() % 5000));
  }
  return walk;
}

struct BytesAt {
  int64_t time_ns = 0;
  int64_t bytes = 0;
};

// What Draw returns, by a walk along all points.
v1::Curve Fold(std::span<const BytesAt> points, int64_t end_ns,
               const FoldWindow& window) {
  v1::Curve curve;
  curve.set_step_ns(end_ns);
  if (points.empty()) return curve;
  for (const BytesAt& point : points) {
    if (point.bytes > curve.peak_bytes()) {
      curve.set_peak_bytes(point.bytes);
      curve.set_peak_at_ns(std::max<int64_t>(point.time_ns, 0));
    }
  }

  const auto [from, column_ns, columns] = ColumnsOf(end_ns, window);
  curve.set_start_ns(from);
  curve.set_column_ns(column_ns);
  curve.mutable_max_bytes()->Reserve(static_cast<int>(columns));
  curve.mutable_min_bytes()->Reserve(static_cast<int>(columns));

  size_t next = 0;
  int64_t held = points.front().bytes;
  // The value of the function at the beginning of the window.
  while (next < points.size() && points[next].time_ns < from) {
    held = points[next++].bytes;
  }
  for (int64_t i = 0; i < columns; ++i) {
    const int64_t begin = from + i * column_ns;
    int64_t most = std::numeric_limits<int64_t>::min();
    int64_t least = std::numeric_limits<int64_t>::max();
    // The old value counts only if it lasts into the column.
    if (next >= points.size() || points[next].time_ns > begin) {
      most = least = held;
    }
    while (next < points.size() && points[next].time_ns < begin + column_ns) {
      held = points[next++].bytes;
      most = std::max(most, held);
      least = std::min(least, held);
    }
    curve.add_max_bytes(most);
    curve.add_min_bytes(least);
  }
  return curve;
}

TEST(MemoryCurveTest, DrawsEveryWindowAsTheFoldOfAllEventsDoes) {
  std::mt19937 random(7);
  for (const int events : {1, 63, 64, 65, 1500, 20'000}) {
    const Walk walk = RandomWalk(events, static_cast<uint32_t>(events));
    std::vector<BytesAt> points;
    for (size_t i = 0; i < walk.times.size(); ++i) {
      points.push_back({walk.times[i], walk.bytes[i]});
    }
    const int64_t end = walk.times.back() + 3;
    const MemoryCurve curve(walk.times, walk.bytes);
    for (int trial = 0; trial < 40; ++trial) {
      const int64_t from =
          trial == 0
              ? 0
              : static_cast<int64_t>(random() % static_cast<uint64_t>(end));
      const int64_t to =
          trial == 0
              ? 0
              : from + 1 +
                    static_cast<int64_t>(random() % static_cast<uint64_t>(end));
      const FoldWindow window{from, to,
                              1 + static_cast<uint32_t>(random() % 700)};
      const v1::Curve drawn = curve.Draw(end, window);
      const v1::Curve folded = Fold(points, end, window);
      EXPECT_THAT(drawn.max_bytes(), ElementsAreArray(folded.max_bytes()));
      EXPECT_THAT(drawn.min_bytes(), ElementsAreArray(folded.min_bytes()));
      EXPECT_EQ(drawn.peak_bytes(), folded.peak_bytes());
      EXPECT_EQ(drawn.peak_at_ns(), folded.peak_at_ns());
      EXPECT_EQ(drawn.column_ns(), folded.column_ns());
    }
  }
}

TEST(MemoryCurveTest, FindsTheFirstOfTheHighestEventsInARange) {
  const Walk walk = RandomWalk(3000, 3);
  const MemoryCurve curve(walk.times, walk.bytes);
  std::mt19937 random(11);
  for (int trial = 0; trial < 200; ++trial) {
    const size_t from = random() % 3000;
    const size_t to = from + 1 + random() % (3001 - from);
    size_t best = from;
    for (size_t i = from; i < to; ++i) {
      if (walk.bytes[i] > walk.bytes[best]) best = i;
    }
    EXPECT_EQ(curve.HighestIn(from, to), best);
  }
}

TEST(LifetimesTest, VisitExactlyThoseThatAreAlive) {
  std::mt19937 random(5);
  for (const size_t count : {1u, 15u, 16u, 17u, 300u, 5000u}) {
    std::vector<Allocation> all;
    for (uint32_t i = 0; i < count; ++i) {
      Allocation one{.address = i, .born = 2 * i};
      if (i < count / 10) one.born = Allocation::kBefore;
      const uint32_t born = i < count / 10 ? 0 : one.born;
      if (random() % 5 != 0) {
        one.died = born + 1 + static_cast<uint32_t>(random() % 200);
      }
      all.push_back(one);
    }
    Lifetimes lifetimes;
    lifetimes.Build(all);
    for (int trial = 0; trial < 60; ++trial) {
      const auto event = static_cast<uint32_t>(random() % (2 * count + 10));
      std::set<size_t> expected, visited;
      for (size_t i = 0; i < count; ++i) {
        const bool born =
            all[i].born == Allocation::kBefore || all[i].born <= event;
        if (born && all[i].died > event) expected.insert(i);
      }
      lifetimes.VisitAlive(event, [&](size_t index) { visited.insert(index); });
      EXPECT_EQ(visited, expected) << count << " at " << event;
    }
  }
}

TEST(EvidenceTest, TheInnermostPassDecides) {
  const auto category = [](std::string_view stack, bool freed = false) {
    return CategoryOf(EvidenceIn(stack, ""), freed);
  };
  EXPECT_EQ(category("/me/model.py:3 forward"), v1::CATEGORY_ACTIVATION);
  EXPECT_EQ(category("/x/torch/_tensor.py:9 backward\n/me/train.py:4 main"),
            v1::CATEGORY_GRADIENT);
  // Checkpointing runs a forward inside of the backward.
  EXPECT_EQ(category("/me/model.py:3 forward\n/x/torch/_tensor.py:9 backward"),
            v1::CATEGORY_ACTIVATION);
  EXPECT_EQ(category("/x/torch/optim/adam.py:80 step"),
            v1::CATEGORY_OPTIMIZER_STATE);
  EXPECT_EQ(category("/x/torch/optim/adam.py:80 step", /*freed=*/true),
            v1::CATEGORY_TEMPORARY);
  EXPECT_EQ(category("/me/train.py:4 main"), v1::CATEGORY_UNKNOWN);
  EXPECT_EQ(EvidenceIn("", ""), Evidence::kNothing);
  const Evidence backward = EvidenceIn("", "aten::mm_backward");
  EXPECT_EQ(backward, Evidence::kBackwardPhase);
  EXPECT_EQ(CategoryOf(backward, /*freed=*/false), v1::CATEGORY_GRADIENT);
  EXPECT_EQ(CategoryOf(backward, /*freed=*/true), v1::CATEGORY_TEMPORARY);
  EXPECT_EQ(EvidenceIn("", "aten::mm", v1::PHASE_FORWARD),
            Evidence::kForwardPhase);
}

}  // namespace
}  // namespace reprise::server
