// SPDX-License-Identifier: Apache-2.0
//
// Plan files: `reprise.plan/1` (docs/formats.md), which `reprise plan` writes
// and prints. Keys that do not apply are absent: an infeasible plan has no
// peak, time or overhead, and a feasible one has no blocking_op.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

#include "base/status.h"
#include "reprise/v1/plan.pb.h"

namespace reprise::formats {

// Writes a plan. `graph` is the value of "graph": the file name or the id.
std::string WritePlanText(const v1::Plan& plan, std::string_view graph);

struct PlanText {
  v1::Plan plan;
  std::string graph;
};

// Reads a plan file, which is not trusted. INVALID_ARGUMENT names the byte (not
// JSON) or the field. Decisions per storage and the timeline are not in the
// file; they follow from the graph and the schedule.
StatusOr<PlanText> ReadPlanText(std::string_view text);

// The certificate of a plan as JSON: the value of "proof" in `reprise.plan/1`
// (docs/formats.md).

std::string WriteProof(const v1::Certificate& certificate);

// INVALID_ARGUMENT names the key. Does not check the proof; the verifier does.
StatusOr<v1::Certificate> ReadProof(const nlohmann::json& proof);

}  // namespace reprise::formats
