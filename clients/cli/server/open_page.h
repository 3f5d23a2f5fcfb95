// SPDX-License-Identifier: Apache-2.0
//
// Opens a page of the dashboard in the user's browser.
#pragma once

#include <string>

#include "base/status.h"

namespace reprise::cli {

// Passes the URL to xdg-open, which returns once a browser has taken it. The
// URL may hold a token, and every user of the machine can read a program's
// arguments, so xdg-open gets a file of mode 0600 next to the daemon's socket
// that redirects to the URL. FAILED_PRECONDITION: there is no desktop, or the
// file cannot be written.
Status OpenPage(const std::string& url);

}  // namespace reprise::cli
