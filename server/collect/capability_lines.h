// SPDX-License-Identifier: Apache-2.0
//
// The lines of an agent's CAPS message as capabilities: "name=value reason".
// The level of CUPTI is a number there and words for people.
#pragma once

#include <string>
#include <vector>

#include "reprise/v1/ingest.pb.h"

namespace reprise::server {

v1::Caps CapabilitiesOf(const std::vector<std::string>& lines);

}  // namespace reprise::server
