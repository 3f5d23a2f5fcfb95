// SPDX-License-Identifier: Apache-2.0
//
// The part of a URL after the question mark: "name=a%20file&run=7f3".
#pragma once

#include <string>
#include <string_view>

namespace reprise::server {

// Returns the decoded value of `name`, the last one where it is there more than
// once; empty if it is absent. The bytes are the client's: any may occur.
std::string QueryValue(std::string_view query, std::string_view name);

}  // namespace reprise::server
