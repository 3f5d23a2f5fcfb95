// SPDX-License-Identifier: Apache-2.0
//
// Opens a page of the dashboard in the person's browser.
#pragma once

#include <string>

#include "base/status.h"

namespace reprise::cli {

// Hands the URL to xdg-open, which returns once a browser has taken it; by way
// of a file of mode 0600 beside the daemon's socket that leads there, since
// every user of the machine can read the arguments of a program, and the URL
// may hold a token. FAILED_PRECONDITION where there is no desktop to open it
// on, or the file cannot be written.
Status OpenPage(const std::string& url);

}  // namespace reprise::cli
