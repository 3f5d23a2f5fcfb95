// SPDX-License-Identifier: Apache-2.0
//
// Cells of the tables: step graphs by name, budgets as fractions.
#pragma once

#include <cstdlib>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "bench/generate/generate.h"
#include "planner/model/problem.h"
#include "tests/planner/graph_json.h"

namespace reprise::planner {

// A file of reprise.graph/1, or a made-up step as KIND:OPS.
inline std::optional<StepGraph> ReadGraph(const std::string& name) {
  const size_t colon = name.find(':');
  if (colon == std::string::npos) return ReadGraphFile(name);
  const auto kind = ParseGraphKind(name.substr(0, colon));
  if (!kind.ok()) return std::nullopt;
  auto graph = Generate(
      {.kind = *kind, .ops = std::atoi(name.substr(colon + 1).c_str())});
  if (!graph.ok()) return std::nullopt;
  return std::move(*graph);
}

// Without its folder.
inline std::string ShortName(const std::string& name) {
  const size_t slash = name.rfind('/');
  return name.substr(slash == std::string::npos ? 0 : slash + 1);
}

// This fraction of what the base order needs above static memory.
inline int64_t BudgetAt(const StepGraph& graph,
                        const Capabilities& capabilities, double fraction) {
  const Problem problem = MakeProblem(graph, capabilities);
  const int64_t dynamic = problem.base.peak_bytes - problem.static_bytes;
  return problem.static_bytes +
         static_cast<int64_t>(fraction * static_cast<double>(dynamic));
}

// At its commas.
inline std::vector<std::string> Split(const std::string& text) {
  std::vector<std::string> parts(1);
  for (const char c : text) {
    if (c == ',') {
      parts.emplace_back();
    } else {
      parts.back() += c;
    }
  }
  return parts;
}

// Its parts as numbers.
inline std::vector<double> Numbers(const std::string& text) {
  std::vector<double> numbers;
  for (const std::string& part : Split(text)) {
    numbers.push_back(std::atof(part.c_str()));
  }
  return numbers;
}

}  // namespace reprise::planner
