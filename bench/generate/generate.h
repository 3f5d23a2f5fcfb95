// SPDX-License-Identifier: Apache-2.0
//
// Step graphs of invented training jobs, so that tests, benchmarks and first
// experiments with the command need no file. Each graph is what a framework
// would record: a forward pass, the backward pass that follows from it and the
// optimizer, with views, in-place ops, dropout, workspaces, collectives, the
// tensors that autograd saves and the module of every op. Sizes are those of
// 16-bit training; times follow the roofline of one data-centre GPU with a
// little noise, as in measurements.
//
//   kind            one unit of it                                 a unit's ops
//   transformer     a layer with explicit attention and dropout           ~48
//   resnet          a bottleneck block, over four stages                  ~24
//   unet            a pair of convolutions down and up, four levels       ~40
//   moe             a layer with fused attention and four experts         ~90
//   diffusion-unet  residual blocks with attention, down and up           ~90
//   layered         a layer of a random graph                         ~10, 25
//
// Networks grow by units: Generate returns the largest that has at most the
// given number of ops. The same kind, size and seed give the same graph on
// every machine. O(ops) time and memory.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "base/status.h"
#include "planner/model/step_graph.h"

namespace reprise::planner {

enum class GraphKind : uint8_t {
  kTransformer,
  kResNet,
  kUNet,
  kMoe,
  kDiffusionUNet,
  kLayered,
};

inline constexpr int kFewestGeneratedOps = 100;
inline constexpr int kMostGeneratedOps = 1'000'000;

struct GenerateOptions {
  GraphKind kind = GraphKind::kTransformer;
  int ops = 1000;
  uint64_t seed = 1;
  // Largest random error of every time, in 1/1000, as in measurements.
  int noise_permille = 10;
};

// Returns a valid graph of at most options.ops ops. INVALID_ARGUMENT: ops is
// out of range, or the noise is not between 0 and 500.
StatusOr<StepGraph> Generate(const GenerateOptions& options);

// Returns "transformer", "resnet", ... in the order of GraphKind.
std::span<const std::string_view> GraphKindNames();

// INVALID_ARGUMENT: there is no such kind; the message lists the kinds.
StatusOr<GraphKind> ParseGraphKind(std::string_view name);

}  // namespace reprise::planner
