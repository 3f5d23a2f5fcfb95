// SPDX-License-Identifier: Apache-2.0
//
// The store's owner: removing runs by hand and by age and size, and a copy of
// the database.
#pragma once

#include <cstdint>
#include <string>

#include "base/status.h"
#include "reprise/v1/admin.pb.h"
#include "server/service/handlers.h"

namespace reprise::server {

// What the store keeps of runs that have ended; 0: no limit.
struct Retention {
  int64_t seconds = 0;
  int64_t bytes = 0;
};

// Removes what is beyond the limits, oldest first, a few runs per call so that
// no call takes long. Returns how many went; 0: nothing is left to remove.
StatusOr<int> ApplyRetention(Store& store, const Retention& limits,
                             int64_t now_ns);

// The methods of reprise.v1.Admin. `database`: the file of the store, beside
// which a copy is made that has no name. `services` outlives the table.
void AddAdminMethods(Services& services, const std::string& database,
                     MethodTable& table);

}  // namespace reprise::server
