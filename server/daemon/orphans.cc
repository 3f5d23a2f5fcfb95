// SPDX-License-Identifier: Apache-2.0
#include "server/daemon/orphans.h"

#include <vector>

#include "base/str_cat.h"
#include "server/collect/process.h"
#include "server/core/log.h"
#include "server/store/session_rows.h"

namespace reprise::server {

Status EndOrphans(Store& store, RunHub& hub,
                  const std::function<bool(const std::string&)>& connected) {
  std::vector<LiveSession> sessions;
  RETURN_IF_ERROR(store.Read([&](Database& db) -> Status {
    ASSIGN_OR_RETURN(sessions, LoadLiveSessions(db));
    return OkStatus();
  }));
  const std::string boot_id = CurrentBootId();
  for (const LiveSession& session : sessions) {
    // Processes on other machines cannot be seen; after a reboot none is alive.
    const bool of_this_boot = session.boot_id == boot_id;
    if (!of_this_boot || session.pid == 0 || connected(session.session_id) ||
        LifeOf(session.pid, session.pid_start_ticks) == Life::kAlive) {
      continue;
    }
    v1::Bye bye;
    bye.set_killed(true);
    RETURN_IF_ERROR(store.Write([&](Database& db) {
      return CloseSession(db, session.session_id, bye, RealtimeNs());
    }));
    LogInfo("session_ended",
            StrCat("session ", session.session_id, " of run ", session.run_id,
                   " ended: process ", session.pid, " is gone"),
            {{"run_id", session.run_id},
             {"session_id", session.session_id},
             {"pid", int64_t{session.pid}}});
    hub.Notify(session.run_id);
  }
  return OkStatus();
}

}  // namespace reprise::server
