// SPDX-License-Identifier: Apache-2.0
//
// How a daemon deals with a database that it cannot use.
//
//   damaged      the file is kept under another name, and a new one is created
//   disk full    a reserve file of 1 MiB is removed: opening a database needs a
//                few free pages, and then it can at least be read
#pragma once

#include <string>

#include "base/status.h"
#include "server/store/database.h"

namespace reprise::server {

// DATA_LOSS: pages of the file contradict each other. Files above 64 MiB are
// not read completely; damage there shows when the pages are read.
Status CheckWhole(Database& database, const std::string& path);

// Renames database, log and index to `path`.damaged-<seconds>; returns the new
// name.
StatusOr<std::string> SetAside(const std::string& path);

// Creates the reserve file of 1 MiB if it is missing and there is room.
void KeepRoom(const std::string& folder);
// Removes the reserve file. Returns false if there was none.
bool UseRoom(const std::string& folder);

}  // namespace reprise::server
