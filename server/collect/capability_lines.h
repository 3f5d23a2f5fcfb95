// SPDX-License-Identifier: Apache-2.0
//
// Parses the lines of an agent's CAPS message, "name=value reason", into
// capabilities. The level of CUPTI is a number there and becomes words.
#pragma once

#include <string>
#include <vector>

#include "reprise/v1/ingest.pb.h"

namespace reprise::server {

v1::Caps CapabilitiesOf(const std::vector<std::string>& lines);

}  // namespace reprise::server
