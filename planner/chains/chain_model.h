// SPDX-License-Identifier: Apache-2.0
//
// A chain (chain.h) as Rotor sees it, and what Rotor's steps mean in ops.
//
// A stage makes its output, keeps some of what its backward reads and needs the
// rest on the way. Its options are what it may keep: everything; half of the
// bytes, the costliest to make again; nothing but the output. What is made
// again for an option runs just before the backward of the stage.
//
// O(ops + arities) per stage and option.
#pragma once

#include <cstdint>
#include <vector>

#include "planner/chains/chain.h"
#include "planner/chains/rotor.h"
#include "planner/model/problem.h"

namespace reprise::planner {

// Ops that a schedule may run, per op of the step.
inline constexpr int kMostExecsPerOp = 20;

class ChainModel {
 public:
  ChainModel(const Problem& problem, const Chain& chain);

  const RotorChain& rotor() const { return rotor_; }

  // Bytes that the chain does not decide about: static, and values that nobody
  // may make again, at the boundary.
  int64_t FixedBytes() const;

  // What a schedule of the chain runs; empty where it runs too much.
  std::vector<OpId> Execs(const std::vector<RotorStep>& steps) const;

 private:
  OpId LastUse(ValueId v, OpId before) const;

  // Bytes made by backward ops alive before the backward of each stage begins,
  // from the last stage to the first; [0] is before that of stage 0's end.
  void FindGradients();

  // Most bytes of values made in a stage while its forward runs, when only
  // those marked outlive their last use there.
  int64_t ForwardPeak(int stage, const std::vector<uint8_t>& kept) const;

  void AddStage(int i);

  // Adds to `again` what its ops need of this stage that is not kept; base
  // order.
  void AddMakers(int stage, const std::vector<uint8_t>& kept,
                 std::vector<OpId>& again) const;

  const Problem& problem_;
  const Chain& chain_;
  const std::vector<int32_t> stage_of_;
  std::vector<std::vector<OpId>> forward_, backward_;    // by stage
  std::vector<std::vector<std::vector<OpId>>> dropped_;  // by stage, option
  std::vector<int64_t> gradient_before_, alive_;
  RotorChain rotor_;
};

}  // namespace reprise::planner
