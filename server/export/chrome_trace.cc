// SPDX-License-Identifier: Apache-2.0
#include "server/export/chrome_trace.h"

#include <nlohmann/json.hpp>

#include "base/str_cat.h"

namespace reprise::server {

namespace {

std::string Quoted(std::string_view text) {
  return nlohmann::json(text).dump(-1, ' ', /*ensure_ascii=*/true,
                                   nlohmann::json::error_handler_t::replace);
}

// 1234567 ns -> "1234.567".
std::string Micros(int64_t ns) {
  std::string fraction = std::to_string(ns % 1000);
  fraction.insert(0, 3 - fraction.size(), '0');
  return StrCat(ns / 1000, ".", fraction);
}

class Writer {
 public:
  explicit Writer(const std::string& name) {
    text_ = StrCat("{\"displayTimeUnit\": \"ms\", \"otherData\": {\"name\": ",
                   Quoted(name), "},\n\"traceEvents\": [\n");
  }

  void Add(size_t process, const ExportTimeline& timeline) {
    const std::string pid = StrCat("\"pid\": ", process + 1);
    Event(StrCat("\"ph\": \"M\", \"name\": \"process_name\", ", pid,
                 ", \"tid\": 0, \"args\": {\"name\": ", Quoted(timeline.title),
                 "}"));
    Event(StrCat("\"ph\": \"M\", \"name\": \"process_sort_index\", ", pid,
                 ", \"tid\": 0, \"args\": {\"sort_index\": ", process, "}"));
    for (const ExportOp& op : timeline.ops) {
      std::string args;
      if (!op.module.empty()) {
        args = StrCat("\"module\": ", Quoted(op.module));
      }
      if (op.run > 0) {
        args += StrCat(args.empty() ? "" : ", ", "\"recomputed\": ", op.run);
      }
      Event(StrCat("\"ph\": \"X\", \"cat\": ",
                   Quoted(op.run > 0 ? "recompute" : op.phase),
                   ", \"name\": ", Quoted(op.name), ", ", pid,
                   ", \"tid\": ", op.track, ", \"ts\": ", Micros(op.start_ns),
                   ", \"dur\": ", Micros(op.duration_ns), ", \"args\": {", args,
                   "}"));
    }
    for (const ExportPoint& point : timeline.curve) {
      Event(StrCat("\"ph\": \"C\", \"name\": \"memory\", ", pid,
                   ", \"tid\": 0, \"ts\": ", Micros(point.time_ns),
                   ", \"args\": {\"bytes\": ", point.bytes, "}"));
    }
  }

  std::string Finish() { return std::move(text_) + "\n]}\n"; }

 private:
  void Event(const std::string& fields) {
    text_ += first_ ? "{" : ",\n{";
    text_ += fields;
    text_ += '}';
    first_ = false;
  }

  std::string text_;
  bool first_ = true;
};

}  // namespace

std::string WriteChromeTrace(const std::string& name,
                             const std::vector<ExportTimeline>& timelines) {
  Writer writer(name);
  for (size_t i = 0; i < timelines.size(); ++i) writer.Add(i, timelines[i]);
  return writer.Finish();
}

}  // namespace reprise::server
