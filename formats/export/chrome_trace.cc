// SPDX-License-Identifier: Apache-2.0
#include <nlohmann/json.hpp>

#include "base/str_cat.h"
#include "formats/export/timeline.h"

namespace reprise::formats {

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
    Event(StrCat(
        "\"ph\": \"X\", \"cat\": \"user_annotation\", \"name\": "
        "\"ProfilerStep#",
        process + 1, "\", ", pid, ", \"tid\": 0, \"ts\": 0.000, \"dur\": ",
        Micros(timeline.duration_ns), ", \"args\": {}"));
    for (const ExportOp& op : timeline.ops) AddOp(pid, op);
    for (const ExportPoint& point : timeline.curve) {
      Event(StrCat("\"ph\": \"C\", \"name\": \"memory\", ", pid,
                   ", \"tid\": 0, \"ts\": ", Micros(point.time_ns),
                   ", \"args\": {\"bytes\": ", point.bytes, "}"));
    }
    int64_t live = timeline.static_bytes;
    for (const ExportEvent& event : timeline.events) {
      live += event.bytes;
      const std::string& what = timeline.names[event.what];
      Event(StrCat(
          "\"ph\": \"i\", \"s\": \"t\", \"cat\": "
          "\"cpu_instant_event\", \"name\": \"[memory]\", ",
          pid, ", \"tid\": ", event.track, ", \"ts\": ", Micros(event.time_ns),
          ", \"args\": {\"Bytes\": ", event.bytes,
          ", \"Addr\": ", event.address, ", \"Total Allocated\": ", live,
          ", \"Device Type\": 1, \"Device Id\": ", process,
          what.empty() ? "" : StrCat(", \"What\": ", Quoted(what)), "}"));
    }
  }

  std::string Finish() { return std::move(text_) + "\n]}\n"; }

 private:
  void AddOp(const std::string& pid, const ExportOp& op) {
    const bool kernel = op.phase == "kernel";
    std::string args;
    const auto add = [&](std::string_view key, const std::string& value) {
      args += StrCat(args.empty() ? "\"" : ", \"", key, "\": ", value);
    };
    if (!kernel && op.phase != "op") add("Part", Quoted(op.phase));
    if (!op.module.empty()) add("module", Quoted(op.module));
    if (op.run > 0) add("recomputed", std::to_string(op.run));
    const char* category = kernel       ? "kernel"
                           : op.run > 0 ? "cpu_op,recompute"
                                        : "cpu_op";
    Event(StrCat("\"ph\": \"X\", \"cat\": \"", category,
                 "\", \"name\": ", Quoted(op.name), ", ", pid,
                 ", \"tid\": ", op.track, ", \"ts\": ", Micros(op.start_ns),
                 ", \"dur\": ", Micros(op.duration_ns), ", \"args\": {", args,
                 "}"));
  }

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

}  // namespace reprise::formats
