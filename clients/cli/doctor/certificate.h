// SPDX-License-Identifier: Apache-2.0
//
// Checks how long the certificate of a server over https is valid.
#pragma once

#include "clients/cli/doctor/doctor.h"
#include "clients/cli/server/server_client.h"

namespace reprise::cli {

// Gets the server's certificate, trusted or not, and reports when it expires.
Check CheckCertificate(const Endpoint& endpoint);

}  // namespace reprise::cli
