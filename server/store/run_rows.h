// SPDX-License-Identifier: Apache-2.0
//
// Rows of `runs`. All functions run inside a Store::Write or Store::Read.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "reprise/v1/query.pb.h"
#include "server/store/sqlite.h"

namespace reprise::server {

// Makes sure the run is there: a graph may arrive before its session does.
Status EnsureRun(Database& db, std::string_view run_id, int64_t now_ns);

// The id that a person meant by an id, an unambiguous prefix or "latest".
// NOT_FOUND; INVALID_ARGUMENT for an ambiguous prefix.
StatusOr<std::string> ResolveRunId(Database& db, std::string_view text);

// Without the verdict. NOT_FOUND.
StatusOr<v1::Run> LoadRun(Database& db, std::string_view run_id);

// Newest first, without verdicts.
StatusOr<std::vector<v1::Run>> LoadRuns(Database& db, int64_t limit);

StatusOr<int64_t> CountRuns(Database& db);

// Removes a run and all that was made from its records; and its newest step
// graph with the plans of it, where no other run has the same.
Status RemoveRun(Database& db, std::string_view run_id);

Status SetRunGraph(Database& db, std::string_view run_id,
                   std::string_view graph_id);
Status SetRunPlan(Database& db, std::string_view run_id,
                  std::string_view plan_id);

}  // namespace reprise::server
