// SPDX-License-Identifier: Apache-2.0
//
// Text from outside made safe for protos and logs.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace reprise {

// Valid UTF-8 of at most `max_bytes`: bytes that are no UTF-8 become U+FFFD,
// and a cut never splits a character. A proto3 string with anything else would
// be refused by whoever parses it, together with the chunk around it.
std::string ValidUtf8(std::string_view text, size_t max_bytes);

// Letters, digits and "._:-", 1 to `max_bytes` of them.
bool IsPlainId(std::string_view text, size_t max_bytes);

// 8-4-4-4-12 hex digits.
bool IsUuid(std::string_view text);

}  // namespace reprise
