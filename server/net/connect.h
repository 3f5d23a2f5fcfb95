// SPDX-License-Identifier: Apache-2.0
//
// The Connect protocol: RPCs over plain HTTP/1.1, for browsers and curl.
//
//   curl -d '{"runId":"latest"}' -H 'Content-Type: application/json'
//        http://127.0.0.1:7070/reprise.v1.Query/GetRun
//
//   unary   POST, application/json or application/proto; 200 and the message,
//           or the HTTP status of the code and {"code","message"}
//   stream  POST, application/connect+json or +proto; envelopes of
//           flags(1) length(4, big-endian) payload; the last one has flag 2
//           and says {} or {"error":{"code","message"}}
//
//   stream, asked for with application/json
//           one JSON answer when the stream is over (below)
//
// Compression is not supported. Protocol: connectrpc.com/docs/protocol.
#pragma once

#include <google/protobuf/message.h>

#include <memory>
#include <string>
#include <string_view>

#include "base/status.h"
#include "server/net/http.h"
#include "server/service/calls/method.h"

namespace reprise::server {

// The paths of RPCs begin with this.
inline constexpr std::string_view kRpcPrefix = "/reprise.v1.";

// Answers one request whose path begins with kRpcPrefix.
void ServeConnect(const MethodTable& table, HttpRequest request,
                  std::shared_ptr<HttpReply> reply);

// Returns the HTTP status for a code, as Connect defines it: NOT_FOUND is 404.
int HttpStatusOf(Code code);

// Returns {"code":"not_found","message":"..."}.
std::string ErrorJson(const Status& status);

// Returns the response to a request that is not served: ErrorJson, with the HTTP
// status of the code or another one.
HttpResponse Refusal(const Status& status);
HttpResponse Refusal(int http_status, const Status& status);

// Returns a response with a JSON body.
HttpResponse JsonResponse(std::string body);

// Returns the proto3 JSON of a message.
StatusOr<std::string> JsonOf(const google::protobuf::Message& message);

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
// An answer holds kMaxOnePieceBytes at most; a larger one ends its call with
// RESOURCE_EXHAUSTED.

inline constexpr size_t kMaxOnePieceBytes = 32 << 20;

// Returns a call that responds once, when the answer is complete.
std::shared_ptr<Call> MakeOnePieceCall(std::shared_ptr<HttpReply> reply,
                                       const HttpRequest& request);

}  // namespace reprise::server
