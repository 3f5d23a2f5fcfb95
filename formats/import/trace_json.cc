// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string_view>

#include "base/str_cat.h"
#include "formats/import/json_characters.h"
#include "formats/import/trace.h"

namespace reprise::formats {

namespace {

using Json = nlohmann::json;

constexpr int kMostDepth = 64;
constexpr int64_t kMostElements = int64_t{1} << 48;

int64_t BytesOfType(std::string_view type) {
  if (type.starts_with("c10::")) type.remove_prefix(5);
  struct Size {
    std::string_view type;
    int64_t bytes;
  };
  static constexpr Size kSizes[] = {
      {"float", 4},
      {"double", 8},
      {"int", 4},
      {"long int", 8},
      {"long", 8},
      {"short int", 2},
      {"short", 2},
      {"signed char", 1},
      {"unsigned char", 1},
      {"bool", 1},
      {"Half", 2},
      {"BFloat16", 2},
      {"Float8_e4m3fn", 1},
      {"Float8_e5m2", 1},
      {"complex<float>", 8},
      {"complex<double>", 16},
  };
  for (const Size& one : kSizes) {
    if (type == one.type) return one.bytes;
  }
  return 0;
}

class Reader : public nlohmann::json_sax<Json> {
 public:
  Reader(const TakeTraceEvent& take, const JsonCharacters& characters)
      : take_(take), characters_(characters) {}

  bool null() override { return true; }
  bool boolean(bool) override { return true; }
  bool number_integer(number_integer_t value) override {
    return Number(static_cast<double>(value), value);
  }
  bool number_unsigned(number_unsigned_t value) override {
    return Number(static_cast<double>(value), static_cast<int64_t>(value));
  }
  bool number_float(number_float_t value, const string_t&) override {
    const bool whole = std::isfinite(value) && std::abs(value) < 9e18;
    return Number(value, whole ? static_cast<int64_t>(value) : 0);
  }
  bool string(string_t& text) override {
    if (!in_events_) return true;
    if (depth_ == 3) {
      if (key_ == "ph") event_.phase = text;
      if (key_ == "cat") event_.category = text;
      if (key_ == "name") event_.name = text;
      if (key_ == "tid") event_.thread = text;
      if (key_ == "pid") event_.process = text;
    }
    if (in_args_ && depth_ == 4 && key_ == "Part") event_.part = text;
    if (in_types_ && depth_ == 5) types_.push_back(text);
    // Scalars take a position among the shapes.
    if (in_dims_ && depth_ == 5) dims_.emplace_back(1);
    return true;
  }

  bool binary(binary_t&) override { return true; }
  bool key(string_t& name) override {
    if (depth_ <= 4) key_ = name;
    return true;
  }
  bool start_object(size_t) override {
    if (depth_ == 2 && in_events_) {
      event_ = TraceEvent();
      dims_.clear();
      types_.clear();
    }
    if (depth_ == 3 && in_events_) in_args_ = key_ == "args";
    return Deeper();
  }
  bool end_object() override {
    --depth_;
    if (depth_ == 3) in_args_ = false;
    if (depth_ != 2 || !in_events_) return true;
    SizeInputs();
    const Status taken = take_(event_);
    if (!taken.ok()) status = Here(taken.code(), taken.message());
    return taken.ok();
  }
  bool start_array(size_t) override {
    if (depth_ == 1) in_events_ = key_ == "traceEvents";
    if (depth_ == 1 && in_events_) found = true;
    if (depth_ == 4 && in_args_) {
      in_dims_ = key_ == "Input Dims";
      in_types_ = key_ == "Input type";
    }
    if (in_dims_ && depth_ == 5) dims_.emplace_back();
    if (in_dims_ && (depth_ == 5 || depth_ == 6)) dims_.back().emplace_back();
    return Deeper();
  }
  bool end_array() override {
    --depth_;
    if (depth_ == 1) in_events_ = false;
    if (depth_ == 4) in_dims_ = in_types_ = false;
    return true;
  }
  bool parse_error(size_t position, const std::string&,
                   const nlohmann::detail::exception& error) override {
    if (position > characters_.source.position()) {
      status = Here(Code::kInvalidArgument, "the JSON ends too early");
      return false;
    }
    std::string why = error.what();
    const size_t colon = why.rfind("; ");
    why =
        why.find("control character") != std::string::npos
            ? "a control character in a text; export with PyTorch 2.4 or newer"
            : (colon == std::string::npos
                   ? "is not valid JSON"
                   : "is not valid JSON: " + why.substr(colon + 2));
    for (char& c : why) {
      if (static_cast<unsigned char>(c) < 0x20 ||
          static_cast<unsigned char>(c) > 0x7e) {
        c = '?';
      }
    }
    // The parser counts from 1 and is one past the byte that it rejected.
    status = InvalidArgument(
        StrCat("byte ", position == 0 ? 0 : position - 1, ": ", why));
    return false;
  }

  Status status;
  bool found = false;  // the file has traceEvents

 private:
  bool Deeper() {
    if (++depth_ <= kMostDepth) return true;
    status = Here(Code::kResourceExhausted,
                  StrCat("the JSON nests more than ", kMostDepth, " deep"));
    return false;
  }

  // An error at the byte that has been read last.
  Status Here(Code code, const std::string& what) const {
    return {code, StrCat("byte ", characters_.source.position(), ": ", what)};
  }

  bool Number(double real, int64_t whole) {
    if (!in_events_) return true;
    if (depth_ == 3) {
      // Microseconds with a fraction. Unix times in microseconds are far below
      // the limit; a duration may be at most eleven days.
      const bool sane = std::isfinite(real) && std::abs(real) < 2e15;
      const bool lasts = sane && real >= 0 && real <= 1e12;
      if (key_ == "ts" && sane) event_.start_ns = std::llround(real * 1000);
      if (key_ == "dur" && lasts)
        event_.duration_ns = std::llround(real * 1000);
      event_.has_wrong_time |=
          (key_ == "ts" && !sane) || (key_ == "dur" && !lasts);
      if (key_ == "tid") event_.thread = std::to_string(whole);
      if (key_ == "pid") event_.process = std::to_string(whole);
      return true;
    }
    if (in_dims_) {
      if (!dims_.empty() && (depth_ == 6 || depth_ == 7)) {
        dims_.back().back().push_back(whole);
      }
      return true;
    }
    if (depth_ == 4 && in_args_) Argument(whole);
    return true;
  }

  void Argument(int64_t value) {
    struct Field {
      std::string_view key;
      int64_t TraceEvent::*field;
    };
    static constexpr Field kFields[] = {
        {"External id", &TraceEvent::external_id},
        {"Sequence number", &TraceEvent::sequence},
        {"Bytes", &TraceEvent::bytes},
        {"Device Type", &TraceEvent::device_type},
        {"Device Id", &TraceEvent::device_id},
        {"Total Allocated", &TraceEvent::total_allocated},
        {"Total Reserved", &TraceEvent::total_reserved},
    };
    for (const Field& field : kFields) {
      if (key_ == field.key) event_.*field.field = value;
    }
    if (key_ == "Addr") event_.address = static_cast<uint64_t>(value);
  }

  // Computes the bytes of every input tensor with known shape and type.
  void SizeInputs() {
    for (size_t i = 0; i < dims_.size(); ++i) {
      const int64_t size = i < types_.size() ? BytesOfType(types_[i]) : 0;
      const bool list = i < types_.size() && types_[i] == "TensorList";
      if (size == 0 && !list) continue;
      // A list of tensors has one shape per tensor, after the (empty) first
      // entry.
      for (size_t k = list ? 1 : 0; k < dims_[i].size(); ++k) {
        int64_t bytes = list ? 4 : size;
        for (const int64_t n : dims_[i][k]) {
          bytes = n >= 0 && bytes <= kMostElements && n <= kMostElements / 16
                      ? bytes * n
                      : 0;
          if (bytes > kMostElements) bytes = 0;
        }
        if (bytes > 0) event_.input_bytes.push_back(bytes);
        if (!list) break;
      }
    }
  }

  const TakeTraceEvent& take_;
  const JsonCharacters& characters_;
  int depth_ = 0;
  std::string key_;
  bool in_events_ = false, in_args_ = false;
  bool in_dims_ = false, in_types_ = false;
  TraceEvent event_;
  std::vector<std::vector<std::vector<int64_t>>> dims_;
  std::vector<std::string> types_;
};

}  // namespace

Status ReadTraceJson(ByteSource& source, const TakeTraceEvent& take) {
  JsonCharacters characters(source);
  Reader reader(take, characters);
  const bool good = Json::sax_parse(JsonCharacterIterator(characters),
                                    JsonCharacterIterator(), &reader);
  if (characters.too_long) {
    return ResourceExhausted(StrCat("byte ", source.position(),
                                    characters.in_text
                                        ? ": a text of more than "
                                        : ": no text and no number in more "
                                          "than ",
                                    JsonCharacters::kMostText >> 20, " MiB"));
  }
  if (!source.status().ok()) return source.status();
  if (!good) {
    return reader.status.ok() ? InvalidArgument("is not valid JSON")
                              : reader.status;
  }
  if (!reader.found) {
    return InvalidArgument(
        "is JSON but no profiler trace: it has no traceEvents; write it with "
        "torch.profiler's export_chrome_trace");
  }
  return OkStatus();
}

}  // namespace reprise::formats
