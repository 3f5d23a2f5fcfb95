// SPDX-License-Identifier: Apache-2.0
#include "clients/cli/verbs/peak_report.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/str_cat.h"
#include "clients/cli/core/console.h"
#include "formats/convert/graph_names.h"

namespace reprise::cli {
namespace {

std::string_view CategoryWord(const planner::StepGraph& graph, int storage) {
  const auto category = graph.storages[static_cast<size_t>(storage)].category;
  const std::string_view word =
      formats::WordOf(formats::kCategoryNames, static_cast<int>(category));
  return word.empty() ? "unknown" : word;
}

// Returns the storage's own name, else the op that makes it, with its module.
std::string StorageLabel(const planner::StepGraph& graph,
                         const AliveStorage& alive) {
  const planner::Storage& storage =
      graph.storages[static_cast<size_t>(alive.storage)];
  if (!storage.name.empty()) return Shown(storage.name);
  if (alive.made_by == planner::kNoOp) return StrCat("storage ", alive.storage);
  const planner::Op& op = graph.ops[static_cast<size_t>(alive.made_by)];
  std::string name = StrCat("op ", alive.made_by, " ", op.name);
  if (!op.module.empty()) name += " (" + op.module + ")";
  return Shown(name);
}

}  // namespace

StatusOr<PeakReport> ReportPeak(const planner::StepGraph& graph,
                                const planner::Schedule& schedule,
                                const planner::Capabilities& capabilities) {
  PeakReport report;
  ASSIGN_OR_RETURN(report.evaluation,
                   planner::Evaluate(graph, schedule, capabilities));
  std::vector<planner::OpId> made_by(graph.storages.size(), planner::kNoOp);
  for (int op = 0; op < graph.op_count(); ++op) {
    for (const planner::StorageId s :
         graph.ops[static_cast<size_t>(op)].writes) {
      made_by[static_cast<size_t>(s)] = op;
    }
  }
  std::vector<int64_t> by_category(std::size(formats::kCategoryNames), 0);
  const int32_t at = report.evaluation.peak_entry;
  for (const planner::Lifetime& life : planner::Lifetimes(graph, schedule)) {
    if (life.born > at || at >= life.dead) continue;
    const auto& storage = graph.storages[static_cast<size_t>(life.storage)];
    report.alive.push_back(
        {.storage = life.storage,
         .bytes = storage.bytes,
         .made_by = made_by[static_cast<size_t>(life.storage)]});
    by_category[static_cast<size_t>(storage.category)] += storage.bytes;
  }
  std::sort(report.alive.begin(), report.alive.end(),
            [](const AliveStorage& a, const AliveStorage& b) {
              return a.bytes != b.bytes ? a.bytes > b.bytes
                                        : a.storage < b.storage;
            });
  for (const planner::StaticPart& part : planner::StaticMemory(graph)) {
    by_category[static_cast<size_t>(part.category)] += part.bytes;
  }
  const auto unknown = static_cast<size_t>(planner::Category::kUnknown);
  by_category[unknown] += std::exchange(by_category[0], 0);
  for (size_t c = 1; c < by_category.size(); ++c) {
    if (by_category[c] == 0) continue;
    report.categories.push_back(
        {.word = std::string(formats::kCategoryNames[c]),
         .text = std::string(formats::kCategoryTexts[c]),
         .bytes = by_category[c]});
  }
  const planner::OpId peak_op = report.evaluation.peak_op;
  if (peak_op != planner::kNoOp) {
    const int64_t workspace =
        graph.ops[static_cast<size_t>(peak_op)].workspace_bytes;
    if (workspace > 0)
      report.categories.push_back({"workspace", "workspace", workspace});
  }
  return report;
}

std::string PeakText(const planner::StepGraph& graph, const PeakReport& report,
                     size_t most) {
  const planner::Evaluation& at = report.evaluation;
  std::string text =
      StrCat("\nAT THE PEAK (", FormatBytes(at.peak_bytes), ", op ", at.peak_op,
             " ", Shown(graph.ops[static_cast<size_t>(at.peak_op)].name), ", ",
             report.alive.size(), " storages)\n");
  for (const CategoryBytes& category : report.categories) {
    text += StrCat("  ", Right(FormatBytes(category.bytes), 11), "  ",
                   category.text, "\n");
  }
  text += "  largest storages\n";
  for (size_t i = 0; i < report.alive.size() && i < most; ++i) {
    const AliveStorage& alive = report.alive[i];
    text += StrCat("  ", Right(FormatBytes(alive.bytes), 11), "  ",
                   Left(std::string(CategoryWord(graph, alive.storage)), 15),
                   "  ", StorageLabel(graph, alive), "\n");
  }
  if (report.alive.size() > most) {
    text += StrCat("  ", Right("", 11), "  and ", report.alive.size() - most,
                   " more\n");
  }
  return text;
}

std::string PeakJson(const planner::StepGraph& graph,
                     const PeakReport& report) {
  nlohmann::ordered_json alive = nlohmann::ordered_json::array();
  for (const AliveStorage& one : report.alive) {
    alive.push_back({{"storage", one.storage},
                     {"bytes", one.bytes},
                     {"category", CategoryWord(graph, one.storage)},
                     {"made_by", one.made_by},
                     {"name", StorageLabel(graph, one)}});
  }
  nlohmann::ordered_json categories = nlohmann::ordered_json::object();
  for (const CategoryBytes& one : report.categories) {
    categories[one.word] = one.bytes;
  }
  const auto replace = nlohmann::ordered_json::error_handler_t::replace;
  return StrCat("\"peak_op\": ", report.evaluation.peak_op,
                ", \"categories\": ", categories.dump(-1, ' ', false, replace),
                ", \"at_peak\": ", alive.dump(-1, ' ', false, replace));
}

}  // namespace reprise::cli
