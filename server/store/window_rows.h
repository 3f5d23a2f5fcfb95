// SPDX-License-Identifier: Apache-2.0
//
// Rows of `capabilities` and `windows`: what works in the processes of a run,
// and how the window stands that was asked for last.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "reprise/v1/ingest.pb.h"
#include "reprise/v1/query.pb.h"
#include "server/store/sqlite.h"

namespace reprise::server {

// Replaces what the session said before.
Status SaveCapabilities(Database& db, std::string_view session_id,
                        const v1::Caps& caps);

Status InsertWindow(Database& db, std::string_view run_id,
                    const v1::OpenWindow& window, int64_t now_ns);

// Of every session of the run, by rank: what its process said at its start
// (labels) and what its agent says now.
StatusOr<std::vector<v1::SessionReport>> LoadSessionReports(
    Database& db, std::string_view run_id);

// Largest step number that any session reported; 0 for none.
StatusOr<uint64_t> LoadLastStep(Database& db, std::string_view run_id);

// The newest window of the run, if one was asked for. `run` as stored,
// `reports` from above: they say why something is missing.
StatusOr<std::optional<v1::WindowStatus>> LoadWindow(
    Database& db, const v1::Run& run,
    const std::vector<v1::SessionReport>& reports);

// Both into the run.
Status AddSessionsAndWindow(Database& db, v1::Run& run);

}  // namespace reprise::server
