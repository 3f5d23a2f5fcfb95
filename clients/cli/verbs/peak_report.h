// SPDX-License-Identifier: Apache-2.0
//
// What is alive at the peak of a schedule, largest first, and by category. For
// files; the server answers this for runs (Planner.Explain).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "planner/model/evaluate.h"
#include "planner/model/step_graph.h"
#include "reprise/v1/planner.pb.h"
#include "reprise/v1/query.pb.h"

namespace reprise::cli {

struct AliveStorage {
  planner::StorageId storage = 0;
  int64_t bytes = 0;
  planner::OpId made_by = planner::kNoOp;
};

struct CategoryBytes {
  std::string word;  // of reprise.graph/1
  std::string text;
  int64_t bytes = 0;
};

struct PeakReport {
  planner::Evaluation evaluation;
  std::vector<AliveStorage> alive;        // largest first
  std::vector<CategoryBytes> categories;  // in legend order, none empty
};

// INVALID_ARGUMENT: the schedule is invalid for the graph.
StatusOr<PeakReport> ReportPeak(const planner::StepGraph& graph,
                                const planner::Schedule& schedule,
                                const planner::Capabilities& capabilities);

// Returns lines such as "  2.0 GiB  activation       layers.3.mlp" for at most
// `most` storages, and how many more there are.
std::string PeakText(const planner::StepGraph& graph, const PeakReport& report,
                     size_t most);

// Returns the same as the JSON value of "at_peak" and "categories".
std::string PeakJson(const planner::StepGraph& graph, const PeakReport& report);

// An explanation as text: what the plan does, by groups of equal blocks; what
// is largest at the peak; and what the opposite decision would cost. For an
// impossible budget, what makes it impossible.

// Returns at most `most` lines of each table, and how many more there are.
std::string ExplanationText(const v1::Explanation& explanation, int most);

// Of it, what is largest at the peak; empty if nothing is alive there.
std::string AtPeakText(const v1::Explanation& explanation, int most);

// Returns one line per point of a trade-off curve, largest budget first, with a
// heading.
std::string CurveTable(const std::vector<v1::TradeoffPoint>& points);

}  // namespace reprise::cli
