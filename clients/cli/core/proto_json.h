// SPDX-License-Identifier: Apache-2.0
//
// Protos as JSON for scripts: field names as in the proto, integers as numbers
// (bytes and ns fit in 2^53; proto3 JSON would quote them), enums by name, and
// every scalar present even if it is 0.
#pragma once

#include <google/protobuf/message.h>

#include <string>

namespace reprise::cli {

// Returns JSON on one line.
std::string ProtoToJson(const google::protobuf::Message& message);

}  // namespace reprise::cli
