// SPDX-License-Identifier: Apache-2.0
#include "base/data_dir.h"

#include <cstdlib>

namespace reprise {
namespace {

std::string Environment(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr ? value : "";
}

}  // namespace

StatusOr<std::string> DefaultDataDir() {
  if (std::string dir = Environment("REPRISE_DATA_DIR"); !dir.empty()) {
    return dir;
  }
  if (const std::string state = Environment("XDG_STATE_HOME"); !state.empty()) {
    return state + "/reprise";
  }
  if (const std::string home = Environment("HOME"); !home.empty()) {
    return home + "/.local/state/reprise";
  }
  return FailedPrecondition(
      "--data-dir: HOME is not set, so there is no default; name a folder");
}

}  // namespace reprise
