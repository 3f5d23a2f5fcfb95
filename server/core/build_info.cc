// SPDX-License-Identifier: Apache-2.0
#include "server/core/build_info.h"

namespace reprise::server {

const char kVersion[] = REPRISE_VERSION;
const char kRevision[] = REPRISE_REVISION;

}  // namespace reprise::server
