// SPDX-License-Identifier: Apache-2.0
//
// The daemon's folders and files: its socket, where --agent-socket does not name
// it, and folders and files that are this user's alone.
#pragma once

#include <string>

#include "base/status.h"

namespace reprise::server {

// As profiler/include/reprise_sockets.h says.
// INVALID_ARGUMENT: the path that the environment gives is too long.
StatusOr<std::string> DefaultAgentSocket();

// Makes the folder and its parents where they are missing, mode 0700, and
// checks that it is ours and writable. Where others may write to it, that is
// taken from them, and logged. PERMISSION_DENIED.
Status EnsureOwnFolder(const std::string& folder);

// Takes the file from everybody but its owner, where it is there: one of a
// release before may have been made with another mode.
void MakePrivate(const std::string& path);

// Part before the last slash; "." where there is none.
std::string FolderOf(const std::string& path);

// Writes beside the file and renames: readers see the old or the new one.
Status WriteFileAtomically(const std::string& path, const std::string& text);

}  // namespace reprise::server
