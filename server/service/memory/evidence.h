// SPDX-License-Identifier: Apache-2.0
//
// What an allocation is for, as far as its records say: the stack that
// allocated, or the op and the phase of the step. A snapshot does not store categories, so each one
// stands with its evidence, and what no rule covers is unknown.
//
//   stack, op or phase                               category
//   torch/optim/, freed later / never in the record  temporary / optimizer state
//   torch/distributed/, c10d                         communication
//   torch/utils/data/, pin_memory                    input
//   Module.to, nn.init, Parameter, load_state_dict   parameter
//   backward of autograd                             gradient
//   forward of a module                              activation
//
// Where no stack was recorded, the phase of the step while it was allocated:
//
//   optimizer's step, freed later / never            temporary / optimizer state
//   backward, which begins when the model returns,
//     or an op named ...backward, freed / never      temporary / gradient
//   forward                                          activation
#pragma once

#include <cstdint>
#include <string_view>

#include "reprise/v1/graph.pb.h"

namespace reprise::server {

enum class Evidence : uint8_t {
  kNothing,  // no stack and no op
  kNoRule,   // there is one, and no rule covers it
  kOptimizer,
  kCommunication,
  kInput,
  kParameter,
  kBackward,
  kForward,
  // By the phase alone.
  kForwardPhase,
  kBackwardPhase,
  kOptimizerPhase,
};

// Reads a stack (frames innermost first, one a line) or, where that is empty,
// the name of an op and the phase.
Evidence EvidenceIn(std::string_view stack, std::string_view op,
                    v1::Phase phase = v1::PHASE_UNSPECIFIED);

v1::Category CategoryOf(Evidence evidence, bool freed);

// Returns the reason as a part of a sentence: "allocated in the backward pass".
std::string_view ReasonOf(Evidence evidence, bool freed);

}  // namespace reprise::server
