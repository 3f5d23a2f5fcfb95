// SPDX-License-Identifier: Apache-2.0
#include "clients/cli/server/grpc_status.h"

#include "base/str_cat.h"

namespace reprise::cli {

Status FromGrpc(const grpc::Status& status, const Endpoint& endpoint) {
  if (status.ok()) return OkStatus();
  if (status.error_code() == grpc::StatusCode::UNAVAILABLE) {
    return Unavailable(StrCat("the server at ", endpoint.target,
                              " does not answer; ",
                              "start one with `reprise serve`"));
  }
  // The codes have gRPC's numbers (base/status.h).
  std::string message = status.error_message();
  if (status.error_code() == grpc::StatusCode::UNAUTHENTICATED) {
    return Status(
        Code::kUnauthenticated,
        StrCat("the server at ", endpoint.target,
               endpoint.token.empty()
                   ? " asks for its token; name the file that holds it with "
                     "--token-file or REPRISE_TOKEN_FILE"
                   : " does not take this token; name the file that holds its "
                     "own with --token-file or REPRISE_TOKEN_FILE"));
  }
  if (message.empty()) message = "the server gave no reason";
  return Status(static_cast<Code>(status.error_code()), message);
}

}  // namespace reprise::cli
