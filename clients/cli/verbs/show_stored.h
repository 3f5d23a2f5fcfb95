// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "base/status.h"
#include "clients/cli/core/console.h"
#include "clients/cli/server/server_client.h"

namespace reprise::cli {

// Shows a run or, if there is no such run, the plan with this id. `open` opens
// the run's page. Returns the exit code.
int ShowStored(const std::string& id, bool open, const ServerClient& client,
               const Globals& globals, Console& console);

// Shows a step graph or plan file without a server. If the plan's graph is
// found, the evaluator checks the plan against it. Returns the exit code.
int ShowFile(const std::string& path, const Globals& globals, Console& console);

// Opens a page of the dashboard in the user's browser.

// Passes the URL to xdg-open, which returns once a browser has taken it. The
// URL may hold a token, and every user of the machine can read a program's
// arguments, so xdg-open gets a file of mode 0600 next to the daemon's socket
// that redirects to the URL. FAILED_PRECONDITION: there is no desktop, or the
// file cannot be written.
Status OpenPage(const std::string& url);

}  // namespace reprise::cli
