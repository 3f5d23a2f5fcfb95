// SPDX-License-Identifier: Apache-2.0
//
// Administration of the store: removing runs by hand or by age and size, and
// copying the database.
#pragma once

#include <cstdint>
#include <string>

#include "base/status.h"
#include "reprise/v1/admin.pb.h"
#include "server/service/calls/handlers.h"

namespace reprise::server {

// Limits for runs that have ended; 0: no limit.
struct Retention {
  int64_t seconds = 0;
  int64_t bytes = 0;
};

// Removes runs beyond the limits, oldest first, a few per call so that no call
// takes long. Returns how many were removed; 0: nothing is left to remove.
StatusOr<int> ApplyRetention(Store& store, RunHub& hub, Audit& audit,
                             const Retention& limits, int64_t now_ns);

// Adds the methods of reprise.v1.Admin. `database` is the store's file; a copy
// is made next to it, as an unnamed file. `services` must outlive the table.
void AddAdminMethods(Services& services, const std::string& database,
                     MethodTable& table);

}  // namespace reprise::server
