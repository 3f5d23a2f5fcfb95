// SPDX-License-Identifier: Apache-2.0
#include "formats/convert/json_scan.h"

#include <nlohmann/json.hpp>

#include "base/str_cat.h"

namespace reprise::formats {
namespace {

using Json = nlohmann::json;

// Counts depth, and remembers the top-level keys that identify the kind of
// file.
class Scanner : public nlohmann::json_sax<Json> {
 public:
  explicit Scanner(size_t size) : size_(size) {}

  bool null() override { return Value(); }
  bool boolean(bool) override { return Value(); }
  bool number_integer(number_integer_t) override { return Value(); }
  bool number_unsigned(number_unsigned_t) override { return Value(); }
  bool number_float(number_float_t, const string_t&) override {
    return Value();
  }
  bool binary(binary_t&) override { return Value(); }
  bool string(string_t& text) override {
    if (depth_ == 1 && key_ == "format") scan.format = text;
    return Value();
  }
  bool key(string_t& name) override {
    if (depth_ != 1) return true;
    key_ = name;
    scan.has_format |= key_ == "format";
    scan.has_schedule |= key_ == "schedule";
    scan.has_ops |= key_ == "ops";
    return true;
  }
  bool start_object(size_t) override { return Enter(); }
  bool end_object() override { return Leave(); }
  bool start_array(size_t) override { return depth_ == 0 ? Value() : Enter(); }
  bool end_array() override { return Leave(); }

  bool parse_error(size_t position, const std::string& token,
                   const nlohmann::detail::exception& error) override {
    // The parser counts from 1 and is one past the byte that it rejected.
    const size_t byte = position == 0 ? 0 : position - 1;
    constexpr int kOutOfDouble = 406;
    if (error.id == kOutOfDouble) {
      status = InvalidArgument(
          StrCat("byte ", byte, ": this number is too large to be read"));
    } else if (byte >= size_) {
      status = InvalidArgument(StrCat(
          "byte ", size_,
          size_ == 0 ? ": the text is empty" : ": the JSON ends too early"));
    } else {
      std::string shown;
      for (const char c : token.substr(0, 40)) {
        const bool plain = c >= ' ' && c <= '~';
        if (plain && c != '"') shown += c;
      }
      status = InvalidArgument(
          StrCat("byte ", byte, ": not valid JSON",
                 shown.empty() ? "" : StrCat(" near '", shown, "'")));
    }
    return false;
  }

  JsonScan scan;
  Status status;

 private:
  bool Value() {
    if (depth_ > 0) return true;
    status = InvalidArgument("byte 0: must be a JSON object");
    return false;
  }
  bool Enter() {
    if (++depth_ <= kMaxJsonDepth) return true;
    status =
        InvalidArgument(StrCat("nests deeper than ", kMaxJsonDepth, " levels"));
    return false;
  }
  bool Leave() {
    --depth_;
    return true;
  }

  size_t size_;
  int depth_ = 0;
  std::string key_;
};

}  // namespace

StatusOr<JsonScan> ScanJson(std::string_view text) {
  Scanner scanner(text.size());
  const bool ok = Json::sax_parse(text.begin(), text.end(), &scanner);
  if (!scanner.status.ok()) return scanner.status;
  if (!ok) return InvalidArgument("not valid JSON");
  return std::move(scanner.scan);
}

}  // namespace reprise::formats
