// SPDX-License-Identifier: Apache-2.0
//
// How long the certificate of a server over https is valid.
#pragma once

#include "clients/cli/doctor.h"
#include "clients/cli/server_client.h"

namespace reprise::cli {

// Asks the server for its certificate, trusted or not, and says when it ends.
Check CheckCertificate(const Endpoint& endpoint);

}  // namespace reprise::cli
