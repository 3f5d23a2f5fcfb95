// SPDX-License-Identifier: Apache-2.0
//
// Rows of `sessions`, `streams` and `names`: who sends, how far each has got,
// and the texts of the records' name ids. A run is running while any of its
// sessions is; it was killed, or failed, if any of them was or did.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "base/str_cat.h"
#include "reprise/v1/ingest.pb.h"
#include "server/core/caller.h"
#include "server/store/database.h"

namespace reprise::server {

// What Hello has among its features if the daemon of the job's machine sends it,
// and how `peer` of such a session begins.
inline constexpr std::string_view kForwardedFeature = "forwarded";
inline constexpr std::string_view kForwardedBy = "forwarded by ";

// Adds or revives the session and its run; returns whether the session is new.
// FAILED_PRECONDITION: the session belongs to another run.
StatusOr<bool> OpenSession(Database& db, const v1::Hello& hello,
                           const Caller& caller, int64_t now_ns);

// Returns the highest contiguous seq that is stored; 0 for none.
StatusOr<uint64_t> LoadCommitted(Database& db, std::string_view session_id,
                                 uint64_t producer_epoch);
Status SaveCommitted(Database& db, std::string_view session_id,
                     uint64_t producer_epoch, uint64_t committed);

// Ends the session, and its run if no other session of it is running.
Status CloseSession(Database& db, std::string_view session_id,
                    const v1::Bye& bye, int64_t now_ns);

// Returns the bytes of the names that are new.
StatusOr<int64_t> SaveNames(Database& db, std::string_view session_id,
                            const v1::Defs& defs);
StatusOr<int64_t> CountNames(Database& db, std::string_view session_id);

// Sessions that have not ended, and that no other daemon forwards.
struct LiveSession {
  std::string session_id;
  std::string run_id;
  std::string boot_id;
  uint32_t pid = 0;
  uint64_t pid_start_ticks = 0;
};
StatusOr<std::vector<LiveSession>> LoadLiveSessions(Database& db);

// Calls `use(key, value)` for each label of `labels`, a column of "key=value" lines.
template <typename Use>
void ForEachLabel(std::string_view labels, Use use) {
  while (!labels.empty()) {
    const size_t end = labels.find('\n');
    const std::string_view line = labels.substr(0, end);
    labels.remove_prefix(std::min(labels.size(), line.size() + 1));
    const size_t equals = line.find('=');
    if (equals == std::string_view::npos) continue;
    use(line.substr(0, equals), line.substr(equals + 1));
  }
}

// Checks the ids of runs and sessions, which come from outside.
inline constexpr size_t kMaxIdentifierBytes = 71;

// An id must have 1 to 71 letters, digits and ._:- so that it is safe in a URL,
// a shell and a log line. INVALID_ARGUMENT, naming `field`.
inline Status CheckIdentifier(std::string_view field, std::string_view id) {
  if (IsPlainId(id, kMaxIdentifierBytes)) return OkStatus();
  if (id.empty() || id.size() > kMaxIdentifierBytes) {
    return InvalidArgument(StrCat(field, ": must have 1 to ",
                                  kMaxIdentifierBytes, " characters, got ",
                                  id.size()));
  }
  return InvalidArgument(
      StrCat(field, ": may hold letters, digits and ._:- only"));
}

}  // namespace reprise::server
