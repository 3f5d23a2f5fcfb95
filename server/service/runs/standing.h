// SPDX-License-Identifier: Apache-2.0
//
// A run for people: how far its proof has come, and how it ended. Page and
// command show these and decide nothing by themselves.
#pragma once

#include <string>

#include "reprise/v1/query.pb.h"

namespace reprise::server {

// Sets `standing` and `ending` of a run whose verdict is there.
void Describe(v1::Run& run);

}  // namespace reprise::server
