// SPDX-License-Identifier: Apache-2.0
//
// Where the daemon keeps its things.
//
//   state     --data-dir, REPRISE_DATA_DIR, $XDG_STATE_HOME/reprise,
//             ~/.local/state/reprise
//   sockets   --agent-socket, REPRISE_SOCKET, $XDG_RUNTIME_DIR/reprise,
//             ${TMPDIR:-/tmp}/reprise-<uid>
#pragma once

#include <string>

#include "base/status.h"

namespace reprise::server {

// FAILED_PRECONDITION: no home folder is known.
StatusOr<std::string> DefaultDataDir();
std::string DefaultAgentSocket();

// Makes the folder and its parents where they are missing, mode 0700, and
// checks that it is ours and writable. PERMISSION_DENIED.
Status EnsureOwnFolder(const std::string& folder);

// Part before the last slash; "." where there is none.
std::string FolderOf(const std::string& path);

// Writes beside the file and renames: readers see the old or the new one.
Status WriteFileAtomically(const std::string& path, const std::string& text);

}  // namespace reprise::server
