// SPDX-License-Identifier: Apache-2.0
//
// Makes text from outside safe for protos and logs.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace reprise {

// Returns valid UTF-8 of at most `max_bytes`: invalid bytes become U+FFFD, and
// truncation never splits a character. Parsers reject a proto3 string that is
// not valid UTF-8, together with the chunk that contains it.
std::string ValidUtf8(std::string_view text, size_t max_bytes);

// Returns text that commands no terminal and begins no line of its own: what
// others wrote may hold both. Control characters, line separators and what turns
// the direction of writing become escapes as in JSON ("\\u001b"), what is not
// UTF-8 becomes U+FFFD. With `keeps_lines`, line feeds and tabs stay.
std::string Shown(std::string_view text, bool keeps_lines = false);

// Returns whether `text` is 1 to `max_bytes` letters, digits and "._:-".
bool IsPlainId(std::string_view text, size_t max_bytes);

// Returns whether `text` is a UUID: 8-4-4-4-12 hex digits.
bool IsUuid(std::string_view text);

}  // namespace reprise
