// SPDX-License-Identifier: Apache-2.0
//
// The default folder for what a daemon stores: REPRISE_DATA_DIR, else
// $XDG_STATE_HOME/reprise, else ~/.local/state/reprise.
#pragma once

#include <string>

#include "base/status.h"

namespace reprise {

// FAILED_PRECONDITION: the home folder is unknown.
StatusOr<std::string> DefaultDataDir();

}  // namespace reprise
