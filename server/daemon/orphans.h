// SPDX-License-Identifier: Apache-2.0
//
// Ends sessions whose process is gone without a notice, because the job died
// while no daemon was running. They are ended as killed, so that no run stays
// "running" forever. A collector that still has records of such a session
// revives it with its Hello and ends it properly.
#pragma once

#include <functional>
#include <string>

#include "base/status.h"
#include "server/store/run_hub.h"
#include "server/store/store.h"

namespace reprise::server {

// `connected(session_id)` says whether a stream is open; such sessions are left
// to their sender.
Status EndOrphans(Store& store, RunHub& hub,
                  const std::function<bool(const std::string&)>& connected);

}  // namespace reprise::server
