// SPDX-License-Identifier: Apache-2.0
//
// Opens a page of the dashboard in the person's browser.
#pragma once

#include <string>

#include "base/status.h"

namespace reprise::cli {

// Hands the URL to xdg-open, which returns once a browser has taken it.
// FAILED_PRECONDITION where there is no desktop to open it on.
Status OpenPage(const std::string& url);

}  // namespace reprise::cli
