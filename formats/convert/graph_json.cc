// SPDX-License-Identifier: Apache-2.0
#include "formats/convert/graph_json.h"

#include <nlohmann/json.hpp>

#include "base/str_cat.h"
#include "formats/convert/graph_names.h"
#include "formats/convert/graph_proto.h"
#include "formats/convert/json_fields.h"

namespace reprise::formats {
namespace {

constexpr std::string_view kGraphFormat = "reprise.graph/1";

StatusOr<v1::StepGraph> ReadMessage(std::string_view text) {
  v1::StepGraph graph;
  const Status read = ReadProto3(text, graph);
  if (read.ok()) return graph;
  const std::string& why = read.message();
  return InvalidArgument(
      StrCat("not a StepGraph: ", why.substr(0, why.find('\n'))));
}

// ---- Writing ---------------------------------------------------------------

template <typename Numbers>
std::string List(const Numbers& numbers) {
  std::string text = "[";
  for (int i = 0; i < numbers.size(); ++i) {
    text += StrCat(i == 0 ? "" : ",", numbers[i]);
  }
  return text + "]";
}

// Omits the key if the value is empty, 0 or false, as in proto3. Only for
// optional keys.
std::string MaybeText(const char* key, std::string_view text) {
  return text.empty() ? "" : StrCat(",\"", key, "\":", JsonText(text));
}
std::string MaybeNumber(const char* key, int64_t value) {
  return value == 0 ? "" : StrCat(",\"", key, "\":", value);
}
std::string MaybeFlag(const char* key, bool value) {
  return value ? StrCat(",\"", key, "\":true") : "";
}

std::string StorageText(const v1::Storage& s) {
  return StrCat(
      "{\"id\":", s.id(), ",\"bytes\":", s.bytes(), MaybeText("name", s.name()),
      MaybeText("category", WordOf(kCategoryNames, s.category())),
      MaybeFlag("saved_for_backward", s.saved_for_backward()),
      s.has_release_op() ? StrCat(",\"release_op\":", s.release_op()) : "",
      MaybeFlag("pinned", s.pinned()), MaybeFlag("stays", s.stays()), "}");
}

std::string StaticText(const v1::StaticPart& part) {
  const auto word = WordOf(kCategoryNames, part.category());
  return StrCat("{\"category\":", JsonText(word.empty() ? "unknown" : word),
                ",\"bytes\":", part.bytes(), "}");
}

std::string OpText(const v1::Op& op) {
  return StrCat(
      "{\"id\":", op.id(), ",\"name\":", JsonText(op.name()), ",\"phase\":\"",
      WordOf(kPhaseNames, op.phase()), "\",\"time_ns\":", op.time_ns(),
      ",\"workspace_bytes\":", op.workspace_bytes(),
      ",\"reads\":", List(op.reads()), ",\"writes\":", List(op.writes()),
      ",\"mutates\":", List(op.mutates()), ",\"kind\":\"",
      WordOf(kKindNames, op.kind()), "\"", MaybeText("module", op.module()),
      MaybeNumber("call", op.call()), MaybeNumber("ordinal", op.ordinal()),
      MaybeNumber("again_ns", op.again_ns()),
      MaybeNumber("state_bytes", op.state_bytes()),
      op.has_replay_point() && !op.replay_point() ? ",\"replay_point\":false"
                                                  : "",
      op.replay_windows_size() > 0
          ? StrCat(",\"replay_windows\":", List(op.replay_windows()))
          : "",
      MaybeText("source", op.source()), "}");
}

std::string TensorText(const v1::Tensor& t) {
  return StrCat("{\"storage\":", t.storage(), ",\"version\":", t.version(),
                MaybeText("name", t.name()), MaybeText("dtype", t.dtype()),
                ",\"shape\":", List(t.shape()),
                MaybeFlag("saved_for_backward", t.saved_for_backward()), "}");
}

template <typename Items, typename ToText>
std::string Lines(const Items& items, ToText to_text) {
  std::string text = "[";
  for (int i = 0; i < items.size(); ++i) {
    text += StrCat(i == 0 ? "\n  " : ",\n  ", to_text(items[i]));
  }
  return text + "\n ]";
}

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

StatusOr<v1::StepGraph> ReadGraphText(std::string_view text) {
  if (text.size() > kMaxGraphTextBytes) {
    return InvalidArgument(StrCat("step graph: at most ", kMaxGraphTextBytes,
                                  " bytes are accepted, got ", text.size()));
  }
  ASSIGN_OR_RETURN(const JsonScan scan, ScanJson(text));
  if (scan.has_format && scan.format != kGraphFormat) {
    return InvalidArgument(StrCat("format: must be \"", kGraphFormat,
                                  "\", got \"", scan.format.substr(0, 40),
                                  "\""));
  }
  if (!scan.has_ops) {
    return InvalidArgument("ops: missing; this is JSON, but not a step graph");
  }
  ASSIGN_OR_RETURN(v1::StepGraph graph,
                   scan.has_format ? ReadGraphFile(text) : ReadMessage(text));
  ASSIGN_OR_RETURN([[maybe_unused]] const planner::StepGraph checked,
                   ToPlanner(graph));
  return graph;
}

std::string WriteGraphText(const v1::StepGraph& graph) {
  std::string text = StrCat(
      "{\"format\":\"", kGraphFormat, "\",\n \"name\":", JsonText(graph.name()),
      ",\n \"source\":", JsonText(graph.source()),
      ",\n \"note\":", JsonText(graph.note()),
      MaybeText("flavour", graph.flavour()),
      MaybeText("structure", graph.structure()),
      MaybeNumber("measured_peak_bytes", graph.measured_peak_bytes()),
      MaybeNumber("measured_step_ns", graph.measured_step_ns()),
      ",\n \"static_bytes\":", graph.static_bytes(),
      ",\n \"required\":", List(graph.required()));
  if (graph.static_parts_size() > 0) {
    text += ",\n \"static_parts\":" + Lines(graph.static_parts(), StaticText);
  }
  text += ",\n \"storages\":" + Lines(graph.storages(), StorageText);
  text += ",\n \"ops\":" + Lines(graph.ops(), OpText);
  if (graph.tensors_size() > 0) {
    text += ",\n \"tensors\":" + Lines(graph.tensors(), TensorText);
  }
  return text + "}\n";
}

StatusOr<JsonScan> ScanJson(std::string_view text) {
  Scanner scanner(text.size());
  const bool ok = Json::sax_parse(text.begin(), text.end(), &scanner);
  if (!scanner.status.ok()) return scanner.status;
  if (!ok) return InvalidArgument("not valid JSON");
  return std::move(scanner.scan);
}

}  // namespace reprise::formats
