// SPDX-License-Identifier: Apache-2.0
#include "planner/construct/strategy.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <string>

#include "base/str_cat.h"
#include "planner/chains/chain.h"
#include "planner/construct/checkpointed.h"

namespace reprise::planner {
namespace {

constexpr std::array<std::string_view, 6> kNames = {
    "auto", "memory", "speed", "collection", "per-block", "save-all"};

using Keep = std::function<bool(ValueId)>;

// Returns flags that discard everything but `keep` over the boundary, to be
// recomputed once.
Flags FlagsKeeping(const Problem& problem, const Keep& keep, bool in_place) {
  Flags flags = BaseFlags(problem);
  for (int32_t f = 0; f < problem.flag_count(); ++f) {
    const ValueId v = problem.flag_value[f];
    if (problem.flag_fixed[f] != 0 ||
        problem.versions.maker[v] >= problem.first_backward || keep(v)) {
      continue;
    }
    const StorageId s = problem.versions.storage[v];
    const bool versions =
        problem.versions.Last(s) != problem.versions.first_value[s];
    if (versions && !in_place) continue;
    const bool crosses = problem.flag_from[f] < problem.first_backward &&
                         problem.flag_to[f] >= problem.first_backward;
    if (crosses) flags[f] = Retention::kShare;
  }
  return flags;
}

// Adds the plan that keeps these values, as far as the executor allows.
void AddKeeping(const Problem& problem, Strategy strategy, const Keep& keep,
                Generator& generator, std::vector<Archive::Point>& candidates) {
  for (const bool in_place : {true, false}) {
    const Generated generated =
        generator.Generate(FlagsKeeping(problem, keep, in_place));
    if (!generated.valid) continue;
    candidates.push_back({generated.peak_bytes, generated.time_ns,
                          generator.execs(), std::string(NameOf(strategy))});
    return;
  }
}

// Returns whether an op, by its name, is a convolution or a matrix product.
bool IsProduct(const std::string& name) {
  static constexpr std::array<std::string_view, 10> kWords = {
      "conv", "mm",     "matmul",    "linear",   "dense",
      "gemm", "einsum", "attention", "bilinear", "_fc"};
  return std::any_of(kWords.begin(), kWords.end(), [&](std::string_view word) {
    return name.find(word) != std::string::npos;
  });
}

// By forward op: its block, or -1. Empty if no block repeats.
std::vector<int32_t> BlockOfStages(const Problem& problem, const Chain& chain) {
  std::vector<int32_t> block_of = CheckpointBlocks(*problem.graph).region;
  block_of.resize(chain.boundary);
  const auto most = std::max_element(block_of.begin(), block_of.end());
  if (most != block_of.end() && *most >= 1) return block_of;
  if (chain.stage_count() < 2) return {};
  const std::vector<int32_t> stages = StagesOfOps(problem, chain);
  block_of.assign(stages.begin(), stages.begin() + chain.boundary);
  return block_of;
}

// Adds the plan that recomputes every block and keeps what leaves it.
void AddPerBlock(const Problem& problem, const Chain& chain,
                 Generator& generator,
                 std::vector<Archive::Point>& candidates) {
  const std::vector<int32_t> block_of = BlockOfStages(problem, chain);
  const auto keep = [&](ValueId v) {
    if (block_of.empty()) return true;
    const int32_t block = block_of[problem.versions.maker[v]];
    if (block < 0) return true;
    const auto uses = problem.Uses(v);
    return std::any_of(uses.begin(), uses.end(), [&](OpId use) {
      return use < chain.boundary && block_of[use] != block;
    });
  };
  AddKeeping(problem, Strategy::kPerBlock, keep, generator, candidates);
}

// Adds the plan that keeps what crosses a cut, and the last segment.
void AddSegments(const Problem& problem, const Chain& chain,
                 const std::vector<OpId>& cuts, Generator& generator,
                 std::vector<Archive::Point>& candidates) {
  const auto keep = [&](ValueId v) {
    const OpId maker = problem.versions.maker[v];
    const auto cut = std::lower_bound(cuts.begin(), cuts.end(), maker);
    if (cut == cuts.end()) return true;
    const auto uses = problem.Uses(v);
    return std::any_of(uses.begin(), uses.end(), [&](OpId use) {
      return use < chain.boundary && use > *cut;
    });
  };
  AddKeeping(problem, Strategy::kMemory, keep, generator, candidates);
}

// Adds the plans of kMemory: several segment sizes around the square roots.
void AddSquareRoots(const Problem& problem, const Chain& chain,
                    Generator& generator,
                    std::vector<Archive::Point>& candidates) {
  const std::vector<int64_t> made = BytesMade(problem, chain, 0);
  double boundary_bytes = 0, largest = 0;
  for (int i = 0; i < chain.stage_count(); ++i) {
    boundary_bytes += static_cast<double>(chain.crossing_bytes[i]);
    largest = std::max(largest, static_cast<double>(made[i]));
  }
  std::vector<std::vector<OpId>> tried;
  const auto add = [&](std::vector<OpId> cuts) {
    if (std::find(tried.begin(), tried.end(), cuts) != tried.end()) return;
    AddSegments(problem, chain, cuts, generator, candidates);
    tried.push_back(std::move(cuts));
  };
  for (const double factor : {0.25, 0.5, 0.707, 1.0, 1.414, 2.0}) {
    const double segment = factor * std::sqrt(boundary_bytes * largest);
    double bytes = 0;
    std::vector<OpId> cuts;
    for (int i = 0; i + 1 < chain.stage_count(); ++i) {
      bytes += static_cast<double>(made[i]);
      if (bytes < segment) continue;
      cuts.push_back(chain.ends[i]);
      bytes = 0;
    }
    add(std::move(cuts));
  }
  // By number of stages, as in the paper.
  const int root = std::max(
      1, static_cast<int>(std::lround(std::sqrt(chain.stage_count()))));
  std::vector<OpId> cuts;
  for (int i = root - 1; i + 1 < chain.stage_count(); i += root) {
    cuts.push_back(chain.ends[i]);
  }
  add(std::move(cuts));
  std::stable_sort(candidates.begin(), candidates.end(),
                   [](const Archive::Point& a, const Archive::Point& b) {
                     if (a.peak_bytes != b.peak_bytes) {
                       return a.peak_bytes < b.peak_bytes;
                     }
                     return a.time_ns < b.time_ns;
                   });
}

}  // namespace

std::string_view NameOf(Strategy strategy) {
  return kNames[static_cast<size_t>(strategy)];
}

StatusOr<Strategy> ParseStrategy(std::string_view name) {
  std::string all;
  for (size_t i = 0; i < kNames.size(); ++i) {
    if (kNames[i] == name) return static_cast<Strategy>(i);
    all += StrCat(i == 0                  ? ""
                  : i + 1 < kNames.size() ? ", "
                                          : " or ",
                  std::string(kNames[i]));
  }
  return InvalidArgument(
      StrCat("strategy ", std::string(name.substr(0, 40)), ": must be ", all));
}

std::vector<Archive::Point> StrategyCandidates(const Problem& problem,
                                               Strategy strategy,
                                               Generator& generator) {
  const auto wanted = [&](Strategy one) {
    return strategy == one || strategy == Strategy::kAuto;
  };
  const Chain chain = FindChain(problem);
  std::vector<Archive::Point> candidates;
  if (chain.ends.empty()) {
    AddKeeping(
        problem, strategy, [](ValueId) { return true; }, generator, candidates);
    return candidates;
  }
  if (wanted(Strategy::kMemory)) {
    AddSquareRoots(problem, chain, generator, candidates);
  }
  if (wanted(Strategy::kSpeed)) {
    const auto keep = [&](ValueId v) {
      return IsProduct(problem.graph->ops[problem.versions.maker[v]].name);
    };
    AddKeeping(problem, Strategy::kSpeed, keep, generator, candidates);
  }
  if (wanted(Strategy::kCollection)) {
    const auto keep = [&](ValueId v) {
      return problem.graph->storages[problem.versions.storage[v]].pinned;
    };
    AddKeeping(problem, Strategy::kCollection, keep, generator, candidates);
  }
  if (wanted(Strategy::kPerBlock)) {
    AddPerBlock(problem, chain, generator, candidates);
  }
  if (wanted(Strategy::kSaveAll)) {
    AddKeeping(
        problem, Strategy::kSaveAll, [](ValueId) { return true; }, generator,
        candidates);
  }
  return candidates;
}

void AddStrategies(const Problem& problem, Generator& generator,
                   Archive& archive) {
  for (const Archive::Point& candidate :
       StrategyCandidates(problem, Strategy::kAuto, generator)) {
    archive.Add(candidate);
  }
}

}  // namespace reprise::planner
