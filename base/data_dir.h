// SPDX-License-Identifier: Apache-2.0
//
// Where a daemon keeps what it stores, unless it is told otherwise:
// REPRISE_DATA_DIR, $XDG_STATE_HOME/reprise, ~/.local/state/reprise.
#pragma once

#include <string>

#include "base/status.h"

namespace reprise {

// FAILED_PRECONDITION: no home folder is known.
StatusOr<std::string> DefaultDataDir();

}  // namespace reprise
