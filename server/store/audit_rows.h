// SPDX-License-Identifier: Apache-2.0
//
// Rows of `audit`: who did what. All functions run inside a Store::Write or
// Store::Read.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "reprise/v1/admin.pb.h"
#include "reprise/v1/ingest.pb.h"
#include "server/core/caller.h"
#include "server/store/database.h"

namespace reprise::server {

// The newest entries that are kept. About 200 bytes each.
inline constexpr int64_t kMaxAuditEntries = 100'000;

v1::AuditEntry NewEntry(const Caller& caller, std::string_view action,
                        const std::string& run_id, std::string subject);

// Adds an entry; its id and time are set here. Long texts are cut. Removes the
// oldest entries beyond `kept`.
Status InsertAudit(Database& db, const v1::AuditEntry& entry,
                   int64_t kept = kMaxAuditEntries);

// Adds what a session's executor did with a plan, in the name of the caller who
// opened the session.
Status InsertApplied(Database& db, std::string_view session_id,
                     const v1::PlanState& state);

// Adds a check that saw a plan change gradients: the plan is withdrawn.
Status InsertFailedCheck(Database& db, std::string_view session_id,
                         const v1::VerifyReport& check);

// Returns the newest entries, newest first; all if `run_id` is empty, and with an
// owner only those of its stored runs.
StatusOr<std::vector<v1::AuditEntry>> LoadAudit(Database& db,
                                                std::string_view run_id,
                                                int64_t limit,
                                                std::string_view owner = "");

}  // namespace reprise::server
