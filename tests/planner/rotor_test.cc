// SPDX-License-Identifier: Apache-2.0
#include "planner/chains/rotor.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <tuple>

#include "planner/model/evaluate.h"
#include "planner/model/random.h"
#include "tests/planner/oracle.h"

namespace reprise::planner {
namespace {

RotorChain RandomChain(Random& random, int most_stages) {
  RotorChain chain{.input_gradient_bytes = random.Below(3)};
  const int length = 1 + random.Below(most_stages);
  for (int i = 0; i < length; ++i) {
    RotorStage stage{.forward_ns = random.Below(10),
                     .forward_temporary_bytes = random.Below(3),
                     .output_bytes = random.Below(6),
                     .gradient_bytes = random.Below(6)};
    for (int q = random.Below(3); q >= 0; --q) {
      stage.options.push_back(
          {.forward_ns = stage.forward_ns + random.Below(2),
           .backward_ns = random.Below(20),
           .kept_bytes = stage.output_bytes + random.Below(8),
           .forward_temporary_bytes = random.Below(3),
           .backward_temporary_bytes = random.Below(3)});
    }
    chain.stages.push_back(stage);
  }
  return chain;
}

// The recurrence as the paper states it, in bytes, with stages counted from 1.
class Plain {
 public:
  explicit Plain(const RotorChain& chain) : chain_(chain) {}

  int64_t T(int a, int b, int64_t m) {
    const auto [known, fresh] = memo_.try_emplace({a, b, m}, kNone);
    if (!fresh) return known->second;
    int64_t best = kNone;
    for (const RotorOption& q : chain_.stages[a - 1].options) {
      const int64_t need =
          std::max(G(b) + q.kept_bytes + q.forward_temporary_bytes,
                   q.kept_bytes + G(a) + G(a - 1) + q.backward_temporary_bytes);
      if (m < need) continue;
      const int64_t inside = a == b ? 0 : T(a + 1, b, m - q.kept_bytes);
      if (inside == kNone) continue;
      best = std::min(best, q.forward_ns + inside + q.backward_ns);
    }
    for (int j = a + 1; j <= b; ++j) {
      int64_t sweep = X(a) + chain_.stages[a - 1].forward_temporary_bytes;
      int64_t forward = chain_.stages[a - 1].forward_ns;
      for (int i = a + 1; i < j; ++i) {
        const RotorStage& stage = chain_.stages[i - 1];
        sweep =
            std::max(sweep, X(i - 1) + X(i) + stage.forward_temporary_bytes);
        forward += stage.forward_ns;
      }
      if (m < G(b) + sweep || m < X(j - 1)) continue;
      const int64_t right = T(j, b, m - X(j - 1));
      const int64_t left = T(a, j - 1, m);
      if (right == kNone || left == kNone) continue;
      best = std::min(best, forward + right + left);
    }
    return memo_[{a, b, m}] = best;
  }

  static constexpr int64_t kNone = Rotor::kImpossible;

 private:
  int64_t X(int i) const { return chain_.stages[i - 1].output_bytes; }
  int64_t G(int i) const {
    return i == 0 ? chain_.input_gradient_bytes
                  : chain_.stages[i - 1].gradient_bytes;
  }

  const RotorChain& chain_;
  std::map<std::tuple<int, int, int64_t>, int64_t> memo_;
};

TEST(RotorTest, EqualsThePlainRecursionInExactBytes) {
  Random random(31);
  for (int i = 0; i < 400; ++i) {
    const RotorChain chain = RandomChain(random, 7);
    const Rotor rotor(chain, 1, 60);
    Plain plain(chain);
    for (int m = 0; m <= 60; m += 1 + random.Below(4)) {
      ASSERT_EQ(rotor.TimeNs(m),
                plain.T(1, static_cast<int>(chain.stages.size()), m))
          << "chain " << i << " m " << m;
    }
  }
}

TEST(RotorTest, StepsTakeTheTimeTheyPromiseAndStayWithinTheMemory) {
  using Kind = RotorStep::Kind;
  Random random(32);
  int checked = 0;
  for (int i = 0; i < 400; ++i) {
    const RotorChain chain = RandomChain(random, 9);
    const int64_t slot = 1 + random.Below(3);
    const Rotor rotor(chain, slot, 60);
    const int64_t m = random.Below(60);
    if (rotor.TimeNs(m) == Rotor::kImpossible) continue;
    ++checked;

    // Replays the steps. Kept per stage: an option, -1: nothing, -2: the output
    // only.
    int64_t time = 0, most = 0;
    const int length = static_cast<int>(chain.stages.size());
    std::vector<int> kept(length, -1);
    int next_backward = length - 1;
    int running = -1;  // the stage that made the latest output
    for (const RotorStep& step : rotor.Steps(m)) {
      const RotorStage& stage = chain.stages[step.stage];
      const RotorOption& option = stage.options[step.option];
      int64_t bytes = chain.stages[next_backward].gradient_bytes;
      if (step.kind == Kind::kBackward) {
        ASSERT_EQ(step.stage, next_backward--);
        ASSERT_EQ(kept[step.stage], step.option);
        bytes += step.stage > 0 ? chain.stages[step.stage - 1].gradient_bytes
                                : chain.input_gradient_bytes;
        bytes += option.backward_temporary_bytes;
        time += option.backward_ns;
      } else {
        ASSERT_TRUE(step.stage == 0 || kept[step.stage - 1] != -1);
        const bool keeping = step.kind == Kind::kForwardKeeping;
        // The previous output is dropped unless it is a checkpoint, that is,
        // unless a later step starts from it again.
        time += keeping ? option.forward_ns : stage.forward_ns;
        bytes += keeping ? option.forward_temporary_bytes
                         : stage.forward_temporary_bytes;
        kept[step.stage] = keeping ? step.option : -2;
        running = step.stage;
      }
      (void)running;
      for (int s = 0; s < length; ++s) {
        if (kept[s] >= 0) bytes += chain.stages[s].options[kept[s]].kept_bytes;
      }
      most = std::max(most, bytes);
      if (step.kind == Kind::kBackward) kept[step.stage] = -1;
    }
    EXPECT_EQ(next_backward, -1);
    EXPECT_EQ(time, rotor.TimeNs(m));
    EXPECT_LE(most, m);
  }
  EXPECT_GT(checked, 100);
}

// Stage i: its forward F_i reads x_(i-1) and makes x_i and the other values it
// keeps; B_i reads them and g_i and makes g_(i-1).
StepGraph GraphOf(const RotorChain& chain, int64_t input_bytes) {
  StepGraph graph;
  const int length = static_cast<int>(chain.stages.size());
  graph.storages.push_back({.bytes = input_bytes});
  graph.ops.push_back({.kind = OpKind::kOnce, .writes = {0}});
  std::vector<StorageId> x = {0}, kept = {-1};
  for (const RotorStage& stage : chain.stages) {
    const RotorOption& option = stage.options[0];
    const StorageId at = graph.storage_count();
    graph.storages.push_back({.bytes = stage.output_bytes});
    graph.storages.push_back({.bytes = option.kept_bytes - stage.output_bytes});
    graph.ops.push_back({.time_ns = stage.forward_ns,
                         .workspace_bytes = option.forward_temporary_bytes,
                         .reads = {x.back()},
                         .writes = {at, at + 1}});
    x.push_back(at);
    kept.push_back(at + 1);
  }
  StorageId gradient = graph.storage_count();
  graph.storages.push_back({.bytes = chain.stages.back().gradient_bytes});
  graph.ops.push_back(
      {.phase = Phase::kBackward, .kind = OpKind::kOnce, .writes = {gradient}});
  for (int i = length; i > 0; --i) {
    const RotorOption& option = chain.stages[i - 1].options[0];
    const StorageId next = graph.storage_count();
    graph.storages.push_back({.bytes = i > 1
                                           ? chain.stages[i - 2].gradient_bytes
                                           : chain.input_gradient_bytes});
    graph.ops.push_back({.time_ns = option.backward_ns,
                         .workspace_bytes = option.backward_temporary_bytes,
                         .phase = Phase::kBackward,
                         .reads = {x[i - 1], x[i], kept[i], gradient},
                         .writes = {next}});
    gradient = next;
  }
  graph.required = {gradient};
  return graph;
}

TEST(RotorTest, IsNeverBelowTheOptimumOfTheSameChain) {
  Random random(33);
  int compared = 0, equal = 0;
  for (int i = 0; i < 150; ++i) {
    RotorChain chain = RandomChain(random, 3);
    for (RotorStage& stage : chain.stages) {
      stage.options.resize(1);
      stage.options[0].forward_ns = stage.forward_ns;
      // An op has one workspace, and makes all that it keeps even if only its
      // output stays.
      RotorOption& option = stage.options[0];
      stage.forward_temporary_bytes = option.forward_temporary_bytes +
                                      option.kept_bytes - stage.output_bytes;
    }
    const int64_t input = random.Below(5);
    const StepGraph graph = GraphOf(chain, input);
    ASSERT_EQ(Validate(graph), OkStatus());
    const Rotor rotor(chain, 1, 50);
    const int64_t m = 4 + random.Below(30);
    const int64_t time = rotor.TimeNs(m);
    const auto best = BestSchedule(graph, {}, m + input);
    if (time == Rotor::kImpossible) continue;
    ++compared;
    ASSERT_TRUE(best.has_value()) << "chain " << i;
    EXPECT_GE(time, best->time_ns) << "chain " << i;
    equal += time == best->time_ns;
  }
  EXPECT_GT(compared, 40);
  EXPECT_GT(equal, compared / 2);
}

TEST(RevolveTest, TheClosedFormSolvesTheRecurrence) {
  for (int s = 1; s < 9; ++s) {
    for (int l = 2; l < 70; ++l) {
      if (s == 1) {
        EXPECT_EQ(RevolveForwardSteps(l, 1), int64_t{l} * (l - 1) / 2);
        continue;
      }
      int64_t best = Rotor::kImpossible;
      for (int j = 1; j < l; ++j) {
        best = std::min(best, j + RevolveForwardSteps(l - j, s - 1) +
                                  RevolveForwardSteps(j, s));
      }
      EXPECT_EQ(RevolveForwardSteps(l, s), best) << "l " << l << " s " << s;
    }
  }
  EXPECT_EQ(RevolveForwardSteps(100, 5), 316);
  EXPECT_EQ(RevolveForwardSteps(100, 10), 222);
  EXPECT_EQ(RevolveForwardSteps(100, 20), 178);
  EXPECT_EQ(RevolveForwardSteps(1000, 10), 3636);
  EXPECT_EQ(RevolveForwardSteps(1000, 30), 2472);
}

TEST(RevolveTest, TheStepsAreAsManyAsTheClosedFormSays) {
  for (const int slots : {1, 2, 3, 5, 8, 20}) {
    for (const int length : {1, 2, 3, 10, 57, 100, 300}) {
      int64_t forwards = 0;
      int next = length - 1;
      for (const RotorStep& step : RevolveSteps(length, slots)) {
        forwards += step.kind == RotorStep::Kind::kForward;
        if (step.kind == RotorStep::Kind::kBackward) {
          EXPECT_EQ(step.stage, next--);
        }
      }
      EXPECT_EQ(next, -1);
      EXPECT_EQ(forwards, RevolveForwardSteps(length, slots))
          << length << " steps, " << slots << " slots";
    }
  }
}

}  // namespace
}  // namespace reprise::planner
