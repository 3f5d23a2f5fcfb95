// SPDX-License-Identifier: Apache-2.0
#include "clients/cli/doctor/load.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>

#include "base/str_cat.h"

namespace reprise::cli {

Load LoadNow() {
  Load load;
  if (getloadavg(&load.last_minute, 1) != 1) load.last_minute = 0;
  load.processors =
      std::max(1, static_cast<int>(sysconf(_SC_NPROCESSORS_ONLN)));
  return load;
}

bool IsStopped(pid_t pid) {
  std::ifstream file(StrCat("/proc/", pid, "/stat"));
  std::string line;
  std::getline(file, line);
  const size_t name = line.rfind(") ");
  return name != std::string::npos && line.compare(name + 2, 1, "T") == 0;
}

std::string TooLate(std::chrono::seconds patience, const Load& load) {
  char shown[32];
  std::snprintf(shown, sizeof shown, "%.1f", load.last_minute);
  return StrCat("did not answer within ", patience.count(), " s; the load is ",
                shown, " on ", load.processors,
                load.processors == 1 ? " processor" : " processors");
}

Check LateCheck(const std::string& name, const std::string& what,
                std::chrono::seconds patience, const Load& load,
                const std::string& advice) {
  const std::string found = StrCat(what, " ", TooLate(patience, load));
  if (!load.IsHigh()) return {Health::kProblem, name, found, advice};
  return {Health::kWarning, name, found,
          "ask again when the machine is less busy"};
}

}  // namespace reprise::cli
