// SPDX-License-Identifier: Apache-2.0
//
// A stream as one JSON answer, for curl and everything else that does not read
// envelopes. The request is that of the stream; its Content-Type is
// application/json instead of application/connect+json.
//
//   Plan, ApplyBudget  the Plan of the last event
//   Sweep              {"points": [TradeoffPoint...]}: the last one of each
//                      budget, largest budget first
//   WatchRun           the first RunEvent: the run as it is now; it does not
//                      wait for the run to end
//   ReadStep           {"parts": [StepPart...]}
//   GetGraph           the graph as a file of format reprise.graph/1
//
// Backup has none: its answer is a database. An answer holds kMaxOnePieceBytes
// at most; a larger one ends its call with RESOURCE_EXHAUSTED.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "server/net/http.h"
#include "server/service/calls/method.h"

namespace reprise::server {

inline constexpr size_t kMaxOnePieceBytes = 32 << 20;

// Returns whether the stream with this path is answered in one piece.
bool HasOnePiece(std::string_view path);

// Returns a call that responds once, when the answer is complete.
std::shared_ptr<Call> MakeOnePieceCall(std::shared_ptr<HttpReply> reply,
                                       std::string peer);

}  // namespace reprise::server
