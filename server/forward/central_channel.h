// SPDX-License-Identifier: Apache-2.0
//
// The connection from a machine's daemon to a central one: TLS, with a
// certificate of its own if the centre asks for one, and the centre's token in
// every call. Certificates, key and token are read again when their files
// change. Without TLS only loopback is connected to.
#pragma once

#include <grpcpp/grpcpp.h>

#include <memory>
#include <string>

#include "base/status.h"

namespace reprise::server {

struct ForwardOptions {
  std::string target;       // "central.example.org:7070"; empty: no forwarding
  std::string ca;           // PEM: who may sign the centre's certificate
  std::string certificate;  // PEM, with the chain: who we are; may be empty
  std::string key;
  std::string token_file;
};

// Checks that the options fit together. INVALID_ARGUMENT names the flag.
Status CheckForwardOptions(const ForwardOptions& options);

// Checks the options and their files, and returns a channel that connects when
// the first call is made, and again by itself. INVALID_ARGUMENT names a file
// that cannot be used.
StatusOr<std::shared_ptr<grpc::Channel>> ChannelToCentral(
    const ForwardOptions& options);

// Says in one sentence why a call to the centre failed, and what to do.
std::string WhyNot(const ForwardOptions& options, const grpc::Status& status);

}  // namespace reprise::server
