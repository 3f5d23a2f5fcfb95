// SPDX-License-Identifier: Apache-2.0
//
// What a daemon does about a database that it cannot use.
//
//   damaged      the file is kept under another name and a new one begun
//   disk full    a file of 1 MiB, kept for this, is removed: a database that is
//                opened wants some pages more, and reading goes on then
#pragma once

#include <string>

#include "base/status.h"
#include "server/store/sqlite.h"

namespace reprise::server {

// DATA_LOSS: pages of the file contradict each other. Files above 64 MiB are
// not read whole for this; what is wrong with them shows when it is read.
Status CheckWhole(Database& database, const std::string& path);

// Renames database, log and index to `path`.damaged-<seconds>; returns the new
// name.
StatusOr<std::string> SetAside(const std::string& path);

// Makes the file of 1 MiB where there is none and there is room.
void KeepRoom(const std::string& folder);
// False: there was none.
bool UseRoom(const std::string& folder);

}  // namespace reprise::server
