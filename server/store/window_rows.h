// SPDX-License-Identifier: Apache-2.0
//
// Rows of `capabilities` and `windows`: what works in the processes of a run,
// and the state of the window that was requested last.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "reprise/v1/ingest.pb.h"
#include "reprise/v1/query.pb.h"
#include "server/store/database.h"

namespace reprise::server {

// Replaces the capabilities that the session reported before.
Status SaveCapabilities(Database& db, std::string_view session_id,
                        const v1::Caps& caps);

Status InsertWindow(Database& db, std::string_view run_id,
                    const v1::OpenWindow& window, int64_t now_ns);

// Returns a report for every session of the run, by rank: the labels its
// process had at its start and its agent's current capabilities.
StatusOr<std::vector<v1::SessionReport>> LoadSessionReports(
    Database& db, std::string_view run_id);

// Returns the largest step number that any session reported; 0 for none.
StatusOr<uint64_t> LoadLastStep(Database& db, std::string_view run_id);

// Returns the newest window of the run, if one was requested. `run` as stored;
// `reports` as returned above, which explain what is missing.
StatusOr<std::optional<v1::WindowStatus>> LoadWindow(
    Database& db, const v1::Run& run,
    const std::vector<v1::SessionReport>& reports);

// Adds the session reports and the newest window to the run.
Status AddSessionsAndWindow(Database& db, v1::Run& run);

}  // namespace reprise::server
