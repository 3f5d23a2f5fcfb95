// SPDX-License-Identifier: Apache-2.0
//
// What happens where memory or threads run out: one sentence and exit code 1,
// never an abort with a core file.
//
//   at the start          CheckRoom says so before any component is started:
//                         gRPC waits forever for a thread that did not start
//   in a request          that request gets 503 or RESOURCE_EXHAUSTED, and the
//                         daemon goes on (worker_pool.h, net/http_connection.h)
//   anywhere else         the process ends with the sentence; what was
//                         acknowledged is stored, and the spool has the rest
//
// A library that calls abort() because malloc failed is covered too.
#pragma once

#include "base/status.h"

namespace reprise::server {

// From now on, std::terminate writes one sentence to stderr and ends the
// process with code 1, as does abort() if memory has run out; any other abort
// is one. Nothing is unwound: destructors would wait for threads.
void InstallLastResort();

// Starts as many threads as a daemon has, and takes as much memory, and gives
// all back. RESOURCE_EXHAUSTED: there is not as much.
Status CheckRoom();

}  // namespace reprise::server
