// SPDX-License-Identifier: Apache-2.0
#include "server/service/memory/evidence.h"

#include <array>

namespace reprise::server {

namespace {

struct Rule {
  std::string_view text;
  Evidence evidence;
};

// The first rule that a stack matches decides.
constexpr std::array kStackRules = {
    Rule{"/torch/optim/", Evidence::kOptimizer},
    Rule{"/torch/distributed/", Evidence::kCommunication},
    Rule{"c10d::", Evidence::kCommunication},
    Rule{"/torch/utils/data/", Evidence::kInput},
    Rule{" pin_memory", Evidence::kInput},
    Rule{"/torch/nn/init.py", Evidence::kParameter},
    Rule{" reset_parameters", Evidence::kParameter},
    Rule{" load_state_dict", Evidence::kParameter},
    Rule{"/torch/nn/parameter.py", Evidence::kParameter},
    // Module.to, cuda, half.
    Rule{" _apply", Evidence::kParameter},
};

// Of these the innermost decides: a backward pass may run a forward again.
constexpr std::array kPassRules = {
    Rule{" backward", Evidence::kBackward},
    Rule{"torch::autograd::Engine", Evidence::kBackward},
    Rule{"_engine_run_backward", Evidence::kBackward},
    Rule{" forward", Evidence::kForward},
};

// Of an allocation without a stack.
Evidence EvidenceOfOp(std::string_view op, v1::Phase phase) {
  if (op.find("c10d") != std::string_view::npos) {
    return Evidence::kCommunication;
  }
  if (op.find("backward") != std::string_view::npos ||
      op.find("Backward") != std::string_view::npos) {
    return Evidence::kBackwardPhase;
  }
  switch (phase) {
    case v1::PHASE_FORWARD:
      return Evidence::kForwardPhase;
    case v1::PHASE_BACKWARD:
      return Evidence::kBackwardPhase;
    case v1::PHASE_OPTIMIZER:
      return Evidence::kOptimizerPhase;
    default:
      return op.empty() ? Evidence::kNothing : Evidence::kNoRule;
  }
}

}  // namespace

Evidence EvidenceIn(std::string_view stack, std::string_view op,
                    v1::Phase phase) {
  if (stack.empty()) return EvidenceOfOp(op, phase);
  for (const Rule& rule : kStackRules) {
    if (stack.find(rule.text) != std::string_view::npos) return rule.evidence;
  }
  size_t innermost = std::string_view::npos;
  Evidence found = Evidence::kNoRule;
  for (const Rule& rule : kPassRules) {
    const size_t at = stack.find(rule.text);
    if (at >= innermost) continue;
    innermost = at;
    found = rule.evidence;
  }
  return found;
}

v1::Category CategoryOf(Evidence evidence, bool freed) {
  switch (evidence) {
    case Evidence::kOptimizer:
    case Evidence::kOptimizerPhase:
      return freed ? v1::CATEGORY_TEMPORARY : v1::CATEGORY_OPTIMIZER_STATE;
    case Evidence::kCommunication:
      return v1::CATEGORY_COMMUNICATION;
    case Evidence::kInput:
      return v1::CATEGORY_INPUT;
    case Evidence::kParameter:
      return v1::CATEGORY_PARAMETER;
    case Evidence::kBackwardPhase:
      return freed ? v1::CATEGORY_TEMPORARY : v1::CATEGORY_GRADIENT;
    case Evidence::kBackward:
      return v1::CATEGORY_GRADIENT;
    case Evidence::kForward:
    case Evidence::kForwardPhase:
      return v1::CATEGORY_ACTIVATION;
    case Evidence::kNothing:
    case Evidence::kNoRule:
      break;
  }
  return v1::CATEGORY_UNKNOWN;
}

std::string_view ReasonOf(Evidence evidence, bool freed) {
  switch (evidence) {
    case Evidence::kOptimizer:
      return freed ? "allocated in an optimizer's step, and freed"
                   : "allocated in an optimizer's step, and not freed";
    case Evidence::kCommunication:
      return "allocated by torch.distributed";
    case Evidence::kInput:
      return "allocated while data was loaded";
    case Evidence::kParameter:
      return "allocated while parameters were made or moved";
    case Evidence::kBackward:
      return "allocated in the backward pass: a gradient of a parameter or of "
             "an activation, or workspace";
    case Evidence::kForward:
      return "allocated in the forward of a module";
    case Evidence::kForwardPhase:
      return "allocated during the forward pass (no stack was recorded): an "
             "activation, or workspace";
    case Evidence::kBackwardPhase:
      return freed ? "allocated after the forward pass and before the "
                     "optimizer's step (no stack was recorded), and freed: the "
                     "gradient of an activation, the loss, or workspace"
                   : "allocated after the forward pass and before the "
                     "optimizer's step (no stack was recorded), and not freed";
    case Evidence::kOptimizerPhase:
      return freed ? "allocated during the optimizer's step (no stack was "
                     "recorded), and freed"
                   : "allocated during the optimizer's step (no stack was "
                     "recorded), and not freed";
    case Evidence::kNothing:
      return "neither a stack nor an op was recorded";
    case Evidence::kNoRule:
      break;
  }
  return "neither its stack nor its op says what it is for";
}

}  // namespace reprise::server
