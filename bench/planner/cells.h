// SPDX-License-Identifier: Apache-2.0
//
// Cells of the benchmark tables: step graphs by name, budgets as fractions.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "bench/generate/generate.h"
#include "planner/model/plan.h"
#include "planner/model/problem.h"
#include "tests/planner/graph_json.h"

namespace reprise::planner {

// Reads a file of reprise.graph/1, or generates a step named KIND:OPS.
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

// Returns the name without its folder.
inline std::string ShortName(const std::string& name) {
  const size_t slash = name.rfind('/');
  return name.substr(slash == std::string::npos ? 0 : slash + 1);
}

// Returns the static memory plus this fraction of the base order's dynamic
// peak.
inline int64_t BudgetAt(const StepGraph& graph,
                        const Capabilities& capabilities, double fraction) {
  const Problem problem = MakeProblem(graph, capabilities);
  const int64_t dynamic = problem.base.peak_bytes - problem.static_bytes;
  return problem.static_bytes +
         static_cast<int64_t>(fraction * static_cast<double>(dynamic));
}

// Splits the text at its commas.
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

// Splits the text at its commas and parses the parts as numbers.
inline std::vector<double> Numbers(const std::string& text) {
  std::vector<double> numbers;
  for (const std::string& part : Split(text)) {
    numbers.push_back(std::atof(part.c_str()));
  }
  return numbers;
}

// The flags of a table of cells: graphs, budgets, and how each is searched.
struct CellFlags {
  double gap = 0.1;   // in %
  int64_t ticks = 0;  // 0: the default
  uint64_t seed = 1;
  std::string executor = "free";          // or once
  std::vector<std::string> without = {};  // passes
  std::vector<double> budgets = {};
  std::vector<std::string> graphs = {};

  // Reads the flag at `i` with its value; an argument that is not a flag is a
  // graph.
  void Read(int argc, char** argv, int& i) {
    const std::string flag = argv[i];
    const bool more = i + 1 < argc;
    if (flag == "--gap" && more) {
      gap = std::atof(argv[++i]);
    } else if (flag == "--ticks" && more) {
      ticks = std::atoll(argv[++i]);
    } else if (flag == "--executor" && more) {
      executor = argv[++i];
    } else if (flag == "--seed" && more) {
      seed = static_cast<uint64_t>(std::atoll(argv[++i]));
    } else if (flag == "--without" && more) {
      without = Split(argv[++i]);
    } else if (flag == "--budgets" && more) {
      budgets = Numbers(argv[++i]);
    } else {
      graphs.push_back(flag);
    }
  }

  Request RequestOf() const {
    Request request{.capabilities = {.seeded_ok = true},
                    .target_gap = gap / 100,
                    .max_ticks = ticks,
                    .seed = seed,
                    .without = without};
    if (executor != "free") {
      request.capabilities.execution = Execution::kOnce;
      request.capabilities = WithExecution(request.capabilities);
    }
    return request;
  }
};

}  // namespace reprise::planner
