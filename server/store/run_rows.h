// SPDX-License-Identifier: Apache-2.0
//
// Rows of `runs`. All functions run inside a Store::Write or Store::Read.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "reprise/v1/query.pb.h"
#include "server/core/caller.h"
#include "server/store/database.h"

namespace reprise::server {

// Creates the run's row if needed: a graph may arrive before its session does.
Status EnsureRun(Database& db, std::string_view run_id, int64_t now_ns,
                 std::string_view owner = "");

// Returns ALREADY_EXISTS if it is the run of another user, and the caller is no
// admin.
Status CheckOwner(Database& db, std::string_view run_id, const Caller& caller);
// CheckOwner, and EnsureRun for a caller, whose run a new one is.
Status ClaimRun(Database& db, std::string_view run_id, const Caller& caller,
                int64_t now_ns);

// Resolves an id, an unambiguous prefix, the id that a launcher of the run gave
// it, or "latest" to a run id. With an owner, the runs of others do not exist.
// NOT_FOUND; INVALID_ARGUMENT for an ambiguous prefix.
StatusOr<std::string> ResolveRunId(Database& db, std::string_view text);
StatusOr<std::string> ResolveRunOf(Database& db, std::string_view text,
                                   std::string_view owner);

// Returns a text, which is no id, that ResolveRunId takes for the run of this
// very id as long as it is this owner's. What happens to runs between two looks
// is not in the hands of who looks: an id alone might be another's run by then,
// or the beginning of its id.
std::string OwnersRun(std::string_view run_id, std::string_view owner);
// The id in such a text; another text as it is.
std::string_view IdIn(std::string_view text);

// Returns a run without its verdict. NOT_FOUND.
StatusOr<v1::Run> LoadRun(Database& db, std::string_view run_id);
// The same of a text as ResolveRunId takes it.
StatusOr<v1::Run> LoadNamedRun(Database& db, std::string_view text);

// Returns the newest runs, newest first, without verdicts.
StatusOr<std::vector<v1::Run>> LoadRuns(Database& db, int64_t limit);

StatusOr<int64_t> CountRuns(Database& db);

// Removes a run and everything made from its records, and also its newest step
// graph with that graph's plans, unless another run has the same graph.
Status RemoveRun(Database& db, std::string_view run_id);

Status SetRunGraph(Database& db, std::string_view run_id,
                   std::string_view graph_id);
Status SetRunPlan(Database& db, std::string_view run_id,
                  std::string_view plan_id);
// How the process that was started for the run has ended; if several were, on
// several machines, one that failed counts.
Status SetRunEnd(Database& db, std::string_view run_id,
                 const v1::ProcessEnd& end);

// Verdicts of runs that are over, so that a list of thousands does not read all
// their reports. A stored verdict counts only as long as nothing came after it:
// VerdictSource names what it was made of.

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
