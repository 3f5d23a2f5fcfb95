// SPDX-License-Identifier: Apache-2.0
#include "bench/generate/generate.h"

#include <algorithm>
#include <array>
#include <string>

#include "base/str_cat.h"
#include "bench/generate/generate_models.h"

namespace reprise::planner {
namespace {

constexpr std::array<std::string_view, 6> kNames = {
    "transformer", "resnet", "unet", "moe", "diffusion-unet", "layered"};

using Model = StepGraph (*)(const Network::Options& options, int units);
constexpr std::array<Model, 6> kModels = {TransformerGraph,   ResNetGraph,
                                          UNetGraph,          MoeGraph,
                                          DiffusionUNetGraph, LayeredGraph};

}  // namespace

std::span<const std::string_view> GraphKindNames() { return kNames; }

StatusOr<GraphKind> ParseGraphKind(std::string_view name) {
  for (size_t i = 0; i < kNames.size(); ++i) {
    if (kNames[i] == name) return static_cast<GraphKind>(i);
  }
  std::string known;
  for (size_t i = 0; i < kNames.size(); ++i) {
    if (i > 0) known += i + 1 == kNames.size() ? " or " : ", ";
    known += kNames[i];
  }
  return InvalidArgument(
      StrCat("kind \"", name.substr(0, 40), "\": must be ", known));
}

StatusOr<StepGraph> Generate(const GenerateOptions& options) {
  if (options.ops < kFewestGeneratedOps || options.ops > kMostGeneratedOps) {
    return InvalidArgument(StrCat("ops: must be from ", kFewestGeneratedOps,
                                  " to ", kMostGeneratedOps, ", got ",
                                  options.ops));
  }
  if (options.noise_permille < 0 || options.noise_permille > 500) {
    return InvalidArgument(StrCat("noise_permille: must be from 0 to 500, got ",
                                  options.noise_permille));
  }
  const auto kind = static_cast<size_t>(options.kind);
  const Network::Options network = {
      .name = StrCat(kNames[kind], "-", options.ops, "-", options.seed),
      .seed = options.seed,
      .noise_permille = options.noise_permille};
  const Model model = kModels[kind];
  // The number of ops grows almost linearly with the units, and the pattern of
  // every kind repeats after sixteen of them.
  constexpr int kPeriod = 16;
  const int a_period = model(network, kPeriod).op_count();
  const int per_period = model(network, 2 * kPeriod).op_count() - a_period;
  const auto units_for = [&](int64_t more_ops) {
    return static_cast<int>(more_ops * kPeriod / per_period);
  };
  int units = std::max(1, kPeriod + units_for(options.ops - a_period));
  StepGraph graph = model(network, units);
  while (units > 1 && graph.op_count() > options.ops) {
    const int fewer = units_for(graph.op_count() - options.ops);
    units = std::max(1, units - std::max(1, fewer));
    graph = model(network, units);
  }
  bool by_one = false;
  while (true) {
    const int room = units_for(options.ops - graph.op_count());
    const int more = by_one ? 1 : std::max(1, room);
    StepGraph larger = model(network, units + more);
    if (larger.op_count() <= options.ops) {
      units += more;
      graph = std::move(larger);
    } else if (more == 1) {
      return graph;
    } else {
      by_one = true;
    }
  }
}

}  // namespace reprise::planner
