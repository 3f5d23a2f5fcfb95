// SPDX-License-Identifier: Apache-2.0
//
// Translates a chain (chain.h) into Rotor's model, and Rotor's steps into ops.
//
// A stage makes its output, keeps part of what its backward reads, and needs
// the rest only temporarily. Its options are what it may keep: everything; the
// half of the bytes that costs most to recompute; only the output. What an
// option does not keep is recomputed just before the backward of the stage.
//
// O(ops + arities) per stage and option.
#pragma once

#include <cstdint>
#include <vector>

#include "planner/chains/chain.h"
#include "planner/chains/rotor.h"
#include "planner/model/problem.h"

namespace reprise::planner {

// Limit for the execs of a schedule, per op of the step.
inline constexpr int kMostExecsPerOp = 20;

class ChainModel {
 public:
  ChainModel(const Problem& problem, const Chain& chain);

  const RotorChain& rotor() const { return rotor_; }

  // Returns the bytes that the chain does not decide about: static memory, and
  // values at the boundary that may not be recomputed.
  int64_t FixedBytes() const;

  // Returns the execs of a schedule of the chain; empty if they exceed the
  // limit.
  std::vector<OpId> Execs(const std::vector<RotorStep>& steps) const;

 private:
  // Finds the bytes made by backward ops that are alive before the backward of
  // each stage begins, from the last stage to the first; [0] is before the
  // backward of stage 0.
  void FindGradients();

  // Returns the most bytes of values made in a stage while its forward runs, if
  // only the marked values outlive their last use there.
  int64_t ForwardPeak(int stage, const std::vector<uint8_t>& kept) const;

  // Adds stage i with its options to the Rotor chain.
  void AddStage(int i);

  // Appends to `again`, in base order, the ops of this stage that make what the
  // ops in it need and that is not kept.
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
