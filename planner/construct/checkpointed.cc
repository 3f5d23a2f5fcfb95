// SPDX-License-Identifier: Apache-2.0
#include "planner/construct/checkpointed.h"

#include <algorithm>
#include <iterator>
#include <unordered_set>

#include "planner/model/versions.h"

namespace reprise::planner {
namespace {

// Returns the first op of the backward; the number of ops if there is none.
OpId ForwardEnd(const StepGraph& graph) {
  const auto first =
      std::find_if(graph.ops.begin(), graph.ops.end(),
                   [](const Op& op) { return op.phase != Phase::kForward; });
  return static_cast<OpId>(first - graph.ops.begin());
}

bool IsDigit(char c) { return c >= '0' && c <= '9'; }

}  // namespace

std::string_view BlockOf(std::string_view module) {
  size_t begin = 0;
  while (begin <= module.size()) {
    const size_t end = std::min(module.find('.', begin), module.size());
    const std::string_view part = module.substr(begin, end - begin);
    // "layers.3", or "encoder_layer_3" as torchvision has it.
    const bool numbered = !part.empty() && IsDigit(part.back()) &&
                          (std::all_of(part.begin(), part.end(), IsDigit)
                               ? begin > 0
                               : part.find('_') != std::string_view::npos);
    if (numbered) return module.substr(0, end);
    begin = end + 1;
  }
  return {};
}

Checkpointed CheckpointBlocks(const StepGraph& graph) {
  Checkpointed made{.region = std::vector<int32_t>(graph.ops.size(), -1),
                    .saved = std::vector<uint8_t>(graph.ops.size(), 0)};
  std::string_view last;
  int32_t regions = 0;
  for (OpId o = 0; o < ForwardEnd(graph); ++o) {
    const std::string_view block = BlockOf(graph.ops[o].module);
    if (!block.empty() && block != last) ++regions;
    last = block;
    if (!block.empty()) made.region[o] = regions - 1;
  }
  return made;
}

CheckpointedStep RunCheckpointed(const StepGraph& graph,
                                 const Checkpointed& checkpointed) {
  const Versions versions = WalkVersions(graph);
  const OpId boundary = ForwardEnd(graph);
  const auto& region = checkpointed.region;
  const auto runs_again = [&](OpId o) {
    return region[o] >= 0 && checkpointed.saved[o] == 0 &&
           graph.ops[o].kind != OpKind::kOnce;
  };
  // What leaves its region stays.
  std::vector<uint8_t> leaves(versions.value_count(), 0);
  for (OpId o = 0; o < boundary; ++o) {
    for (const ValueId v : versions.Need(o)) {
      if (region[versions.maker[v]] != region[o]) leaves[v] = 1;
    }
  }
  for (const StorageId s : graph.required) leaves[versions.Last(s)] = 1;

  const int32_t regions =
      1 +
      (region.empty() ? -1 : *std::max_element(region.begin(), region.end()));
  // By region: its ops that run again, up to the last one that is needed.
  std::vector<std::vector<OpId>> again(regions);
  std::vector<std::vector<StorageId>> saved(regions);
  std::vector<OpId> last_needed(regions, kNoOp);
  for (OpId o = 0; o < boundary; ++o) {
    if (runs_again(o)) {
      again[region[o]].push_back(o);
    } else if (region[o] >= 0) {
      std::vector<StorageId>& of = saved[region[o]];
      const auto& writes = graph.ops[o].writes;
      of.insert(of.end(), writes.begin(), writes.end());
    }
  }
  const auto is_dropped = [&](ValueId v) {
    const OpId maker = versions.maker[v];
    return maker < boundary && runs_again(maker) && leaves[v] == 0;
  };
  for (OpId o = boundary; o < graph.op_count(); ++o) {
    for (const ValueId v : versions.Need(o)) {
      if (!is_dropped(v)) continue;
      OpId& last = last_needed[region[versions.maker[v]]];
      last = std::max(last, versions.maker[v]);
    }
  }

  CheckpointedStep step{.graph = graph, .execs = {}};
  std::vector<uint8_t> done(regions, 0);
  const auto run_again = [&](int32_t r, OpId before) {
    done[r] = 1;
    for (const OpId o : again[r]) {
      if (checkpointed.stops_early && o > last_needed[r]) break;
      step.execs.push_back(o);
    }
    std::vector<StorageId>& reads = step.graph.ops[before].reads;
    const std::unordered_set<StorageId> known(reads.begin(), reads.end());
    std::copy_if(saved[r].begin(), saved[r].end(), std::back_inserter(reads),
                 [&](StorageId s) { return !known.contains(s); });
  };
  for (OpId o = 0; o < graph.op_count(); ++o) {
    if (o >= boundary) {
      for (const ValueId v : versions.Need(o)) {
        const int32_t r = is_dropped(v) ? region[versions.maker[v]] : -1;
        if (r >= 0 && done[r] == 0) run_again(r, o);
      }
    }
    step.execs.push_back(o);
  }
  return step;
}

}  // namespace reprise::planner
