// SPDX-License-Identifier: Apache-2.0
//
// Sessions whose process is gone although nobody said so: the job died while
// no daemon was there to see it. They are ended as killed, so that no run is
// "running" for ever. A collector that still has records of such a session
// revives it with its Hello and ends it properly.
#pragma once

#include <functional>
#include <string>

#include "base/status.h"
#include "server/store/run_hub.h"
#include "server/store/store.h"

namespace reprise::server {

// `connected(session_id)`: a stream is open, so its sender knows better.
Status EndOrphans(Store& store, RunHub& hub,
                  const std::function<bool(const std::string&)>& connected);

}  // namespace reprise::server
