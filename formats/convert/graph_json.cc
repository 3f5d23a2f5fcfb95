// SPDX-License-Identifier: Apache-2.0
#include "formats/convert/graph_json.h"

#include <google/protobuf/util/json_util.h>

#include <nlohmann/json.hpp>

#include "base/str_cat.h"
#include "formats/convert/graph_json_reader.h"
#include "formats/convert/graph_names.h"
#include "formats/convert/graph_proto.h"
#include "formats/convert/json_scan.h"

namespace reprise::formats {
namespace {

constexpr std::string_view kGraphFormat = "reprise.graph/1";

StatusOr<v1::StepGraph> ReadProto3(std::string_view text) {
  v1::StepGraph graph;
  google::protobuf::util::JsonParseOptions options;
  options.ignore_unknown_fields = true;
  const auto result = google::protobuf::util::JsonStringToMessage(
      {text.data(), text.size()}, &graph, options);
  if (result.ok()) return graph;
  const std::string why(result.message().data(), result.message().size());
  return InvalidArgument(
      StrCat("not a StepGraph: ", why.substr(0, why.find('\n'))));
}

// ---- Writing ---------------------------------------------------------------

std::string Quoted(std::string_view text) {
  // Bytes that are not UTF-8 (in a path, or a name from a C library) are
  // replaced rather than rejected, because names are only for people.
  return nlohmann::json(text).dump(-1, ' ', false,
                                   nlohmann::json::error_handler_t::replace);
}

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
  return text.empty() ? "" : StrCat(",\"", key, "\":", Quoted(text));
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
      MaybeFlag("pinned", s.pinned()), "}");
}

std::string StaticText(const v1::StaticPart& part) {
  const auto word = WordOf(kCategoryNames, part.category());
  return StrCat("{\"category\":", Quoted(word.empty() ? "unknown" : word),
                ",\"bytes\":", part.bytes(), "}");
}

std::string OpText(const v1::Op& op) {
  return StrCat(
      "{\"id\":", op.id(), ",\"name\":", Quoted(op.name()), ",\"phase\":\"",
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
                   scan.has_format ? ReadGraphFile(text) : ReadProto3(text));
  ASSIGN_OR_RETURN([[maybe_unused]] const planner::StepGraph checked,
                   ToPlanner(graph));
  return graph;
}

std::string WriteGraphText(const v1::StepGraph& graph) {
  std::string text = StrCat(
      "{\"format\":\"", kGraphFormat, "\",\n \"name\":", Quoted(graph.name()),
      ",\n \"source\":", Quoted(graph.source()),
      ",\n \"note\":", Quoted(graph.note()),
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

}  // namespace reprise::formats
