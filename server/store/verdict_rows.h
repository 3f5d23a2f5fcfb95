// SPDX-License-Identifier: Apache-2.0
//
// Verdicts of runs that are over, so that a list of thousands does not read all
// their reports. A stored verdict counts only as long as nothing came after it:
// VerdictSource names what it was made of.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "base/status.h"
#include "reprise/v1/query.pb.h"
#include "server/store/database.h"

namespace reprise::server {

// Returns a text that changes with every report, plan and state of the run, and
// with the version of this binary.
StatusOr<std::string> VerdictSource(Database& db, const v1::Run& run);

// Returns the stored verdict, if it was made of `source`.
StatusOr<std::optional<v1::Verdict>> LoadVerdict(Database& db,
                                                 std::string_view run_id,
                                                 std::string_view source);

Status SaveVerdict(Database& db, std::string_view run_id,
                   std::string_view source, const v1::Verdict& verdict);

}  // namespace reprise::server
