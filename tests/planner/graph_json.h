// SPDX-License-Identifier: Apache-2.0
//
// Reads `reprise.graph/1` for tests, without the checks of the product's
// importer: the files are our own.
#pragma once

#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "planner/model/step_graph.h"

namespace reprise::planner {

inline Phase PhaseOf(const std::string& text) {
  if (text == "backward") return Phase::kBackward;
  if (text == "optimizer") return Phase::kOptimizer;
  return Phase::kForward;
}

inline OpKind KindOf(const std::string& text) {
  if (text == "seeded") return OpKind::kSeeded;
  if (text == "once") return OpKind::kOnce;
  if (text == "collective") return OpKind::kCollective;
  if (text == "view") return OpKind::kView;
  return OpKind::kPure;
}

// Returns nothing if the file does not exist.
inline std::optional<StepGraph> ReadGraphFile(const std::string& path) {
  std::ifstream file(path);
  if (!file) return std::nullopt;
  const nlohmann::json json = nlohmann::json::parse(file);
  StepGraph graph;
  graph.name = json.value("name", "");
  graph.static_bytes = json.value("static_bytes", int64_t{0});
  graph.required = json.value("required", std::vector<StorageId>{});
  for (const nlohmann::json& storage : json["storages"]) {
    graph.storages.push_back({.bytes = storage["bytes"].get<int64_t>(),
                              .name = storage.value("name", "")});
  }
  for (const nlohmann::json& op : json["ops"]) {
    graph.ops.push_back(
        {.time_ns = op["time_ns"].get<int64_t>(),
         .workspace_bytes = op.value("workspace_bytes", int64_t{0}),
         .phase = PhaseOf(op.value("phase", "")),
         .kind = KindOf(op.value("kind", "")),
         .reads = op.value("reads", std::vector<StorageId>{}),
         .writes = op.value("writes", std::vector<StorageId>{}),
         .mutates = op.value("mutates", std::vector<StorageId>{}),
         .name = op.value("name", ""),
         .module = op.value("module", "")});
  }
  return graph;
}

}  // namespace reprise::planner
