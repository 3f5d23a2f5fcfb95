// SPDX-License-Identifier: Apache-2.0
//
// A byte source as input of nlohmann's JSON parser, in bounded memory. The
// parser buffers everything from the beginning of one text or number to the
// beginning of the next, including white space; after 4 MiB of that the input
// ends, and `too_long` says why.
#pragma once

#include <cstddef>
#include <iterator>

#include "formats/import/byte_source.h"

namespace reprise::formats {

struct JsonCharacters {
  static constexpr size_t kMostText = 4 << 20;

  ByteSource& source;
  int current = -1;  // the next byte, or -1 at the end
  bool in_text = false;
  bool escaped = false;
  bool too_long = false;
  bool in_number = false;
  size_t text_bytes = 0;
  size_t other_bytes = 0;  // buffered bytes outside of texts

  explicit JsonCharacters(ByteSource& from) : source(from) { Advance(); }
  void Advance();

 private:
  static bool IsOfNumber(int c) {
    return (c >= '0' && c <= '9') || c == '-' || c == '+' || c == '.' ||
           c == 'e' || c == 'E';
  }
};

inline void JsonCharacters::Advance() {
  current = source.Next();
  if (!in_text) {
    in_text = current == '"';
    text_bytes = 0;
    const bool begins = !in_number && IsOfNumber(current);
    in_number = IsOfNumber(current);
    other_bytes = in_text || begins ? 0 : other_bytes + 1;
    if (other_bytes > kMostText) {
      too_long = true;
      current = -1;
    }
    return;
  }
  if (++text_bytes > kMostText) {
    too_long = true;
    current = -1;
  }
  if (escaped) {
    escaped = false;
  } else if (current == '\\') {
    escaped = true;
  } else if (current == '"') {
    in_text = false;
  }
}

class JsonCharacterIterator {
 public:
  using iterator_category = std::input_iterator_tag;
  using value_type = char;
  using difference_type = std::ptrdiff_t;
  using pointer = const char*;
  using reference = char;

  JsonCharacterIterator() = default;
  explicit JsonCharacterIterator(JsonCharacters& characters)
      : characters_(&characters) {}
  char operator*() const { return static_cast<char>(characters_->current); }
  JsonCharacterIterator& operator++() {
    characters_->Advance();
    return *this;
  }
  JsonCharacterIterator operator++(int) {
    JsonCharacterIterator before = *this;
    ++*this;
    return before;
  }
  bool operator==(const JsonCharacterIterator& other) const {
    return AtEnd() == other.AtEnd();
  }
  bool operator!=(const JsonCharacterIterator& other) const {
    return !(*this == other);
  }

 private:
  bool AtEnd() const {
    return characters_ == nullptr || characters_->current < 0;
  }
  JsonCharacters* characters_ = nullptr;
};

}  // namespace reprise::formats
