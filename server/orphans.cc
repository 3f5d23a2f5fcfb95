// SPDX-License-Identifier: Apache-2.0
#include "server/orphans.h"

#include <fstream>
#include <sstream>

#include "base/str_cat.h"
#include "server/log.h"
#include "server/store/session_rows.h"

namespace reprise::server {

std::string BootId() {
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string id;
  std::getline(file, id);
  return id;
}

bool ProcessLives(uint32_t pid, uint64_t start_ticks) {
  std::ifstream file(StrCat("/proc/", pid, "/stat"));
  std::string line;
  if (!std::getline(file, line)) return false;
  // The name in field 2 may hold spaces and parentheses; field 22 is the 20th
  // after its end.
  const size_t name_end = line.rfind(')');
  if (name_end == std::string::npos) return false;
  std::istringstream fields(line.substr(name_end + 1));
  std::string field;
  for (int i = 3; i <= 22; ++i) fields >> field;
  return start_ticks == 0 || field == std::to_string(start_ticks);
}

Status EndOrphans(Store& store, RunHub& hub,
                  const std::function<bool(const std::string&)>& connected) {
  std::vector<LiveSession> sessions;
  RETURN_IF_ERROR(store.Read([&](Database& db) -> Status {
    ASSIGN_OR_RETURN(sessions, LoadLiveSessions(db));
    return OkStatus();
  }));
  const std::string boot_id = BootId();
  for (const LiveSession& session : sessions) {
    // Of another machine we know nothing; after a reboot nothing lives.
    const bool of_this_boot = session.boot_id == boot_id;
    if (!of_this_boot || session.pid == 0 || connected(session.session_id) ||
        ProcessLives(session.pid, session.pid_start_ticks)) {
      continue;
    }
    v1::Bye bye;
    bye.set_killed(true);
    RETURN_IF_ERROR(store.Write([&](Database& db) {
      return CloseSession(db, session.session_id, bye, RealtimeNs());
    }));
    LogInfo(StrCat("session ", session.session_id, " of run ", session.run_id,
                   " ended: process ", session.pid, " is gone"));
    hub.Notify(session.run_id);
  }
  return OkStatus();
}

}  // namespace reprise::server
