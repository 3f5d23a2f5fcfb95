// SPDX-License-Identifier: Apache-2.0
#include <google/protobuf/descriptor.h>
#include <google/protobuf/message.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <utility>

#include "base/str_cat.h"
#include "formats/convert/graph_json.h"
#include "formats/convert/graph_names.h"
#include "formats/convert/graph_proto.h"
#include "formats/convert/json_fields.h"

namespace reprise::formats {
namespace {

using Json = nlohmann::json;
using Event = Json::parse_event_t;
using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;

// Keys have the names of the fields in graph.proto. These must be there.
constexpr std::string_view kNeeded[] = {"StepGraph.static_bytes",
                                        "StepGraph.required",
                                        "StepGraph.storages",
                                        "StepGraph.ops",
                                        "StaticPart.category",
                                        "StaticPart.bytes",
                                        "Storage.id",
                                        "Storage.bytes",
                                        "Op.id",
                                        "Op.phase",
                                        "Op.kind",
                                        "Op.time_ns",
                                        "Op.workspace_bytes",
                                        "Op.reads",
                                        "Op.writes",
                                        "Op.mutates",
                                        "Tensor.storage",
                                        "Tensor.version"};
// These fields are no keys of a file.
constexpr std::string_view kNoKeys[] = {"agent_ops", "launch_gap_ns", "timing"};

bool IsAmong(std::span<const std::string_view> names, std::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

std::span<const std::string_view> WordsOf(const FieldDescriptor& field) {
  const std::string& name = field.enum_type()->name();
  if (name == "Phase") return kPhaseNames;
  return name == "OpKind" ? std::span<const std::string_view>(kKindNames)
                          : kCategoryNames;
}

// Reads one text. Depths: the keys of the file are at 1, the items of its lists
// at 2, and their keys at 3. An item becomes a message and is forgotten.
class GraphReader {
 public:
  StatusOr<v1::StepGraph> Read(std::string_view text) {
    const Json root = Json::parse(
        text.begin(), text.end(),
        [this](int depth, Event event, Json& value) {
          return status_.ok() && Keeps(depth, event, value);
        },
        /*allow_exceptions=*/false);
    RETURN_IF_ERROR(status_);
    if (!root.is_object()) return InvalidArgument("not valid JSON");
    JsonFields in(root, graph_);
    ReadFields(in, *v1::StepGraph::descriptor());
    RETURN_IF_ERROR(in.status());
    return std::move(graph_);
  }

 private:
  // Returns whether what was read stays in the document.
  bool Keeps(int depth, Event event, Json& value) {
    if (event == Event::key) return IsKey(depth, value.get<std::string>());
    if (depth != 2 || list_ == nullptr) return true;
    if (event == Event::object_start) seen_[1] = 0;
    if (event != Event::object_end) return true;
    AddItem(value);
    return false;
  }

  bool IsKey(int depth, const std::string& name) {
    const Descriptor* type = depth == 1 ? v1::StepGraph::descriptor()
                             : depth == 3 && list_ != nullptr
                                 ? list_->message_type()
                                 : nullptr;
    const FieldDescriptor* field =
        type == nullptr ? nullptr : type->FindFieldByName(name);
    if (field != nullptr && IsAmong(kNoKeys, name)) field = nullptr;
    if (depth == 1) {
      list_ = field != nullptr && field->message_type() != nullptr ? field
                                                                   : nullptr;
    }
    if (field == nullptr) return false;
    const uint64_t bit = uint64_t{1} << field->index();
    uint64_t& seen = seen_[depth == 3 ? 1 : 0];
    if (seen & bit) {
      Fail(
          StrCat(depth == 3 ? StrCat(Item(), ".") : "", name, ": given twice"));
    }
    seen |= bit;
    return true;
  }

  void AddItem(const Json& item) {
    const std::string where = Item();
    const auto* fields = graph_.GetReflection();
    if (fields->FieldSize(graph_, list_) >= kMaxGraphItems) {
      return Fail(
          StrCat(list_->name(), ": at most ", kMaxGraphItems, " are accepted"));
    }
    JsonFields in(item, *fields->AddMessage(&graph_, list_));
    ReadFields(in, *list_->message_type());
    if (!in.status().ok()) Fail(StrCat(where, ".", in.status().message()));
  }

  void ReadFields(JsonFields& in, const Descriptor& type) {
    const auto [known, is_new] = needed_.try_emplace(&type, 0);
    for (int i = 0; i < type.field_count(); ++i) {
      const FieldDescriptor& field = *type.field(i);
      const char* key = field.name().c_str();
      if (is_new) {
        known->second |=
            uint64_t{IsAmong(kNeeded, StrCat(type.name(), ".", key))} << i;
      }
      const bool needed = (known->second >> i & 1) != 0;
      if (field.message_type() != nullptr) {
        const Json* rest = in.List(needed, key);
        if (rest != nullptr && !rest->empty()) {
          in.Fail(StrCat(key, ": must be a list of objects"));
        }
      } else if (field.enum_type() != nullptr) {
        in.Word(needed, key, WordsOf(field));
      } else if (!IsAmong(kNoKeys, key)) {
        in.Read(needed, {key});
      }
    }
  }

  // "ops[17]": the item that is read.
  std::string Item() const {
    return StrCat(list_->name(), "[",
                  graph_.GetReflection()->FieldSize(graph_, list_), "]");
  }

  void Fail(std::string message) {
    if (status_.ok()) status_ = InvalidArgument(std::move(message));
  }

  v1::StepGraph graph_;
  Status status_;
  const FieldDescriptor* list_ = nullptr;  // of objects, at depth 1
  uint64_t seen_[2] = {};  // bit i: field i of the file, of the item
  std::map<const Descriptor*, uint64_t> needed_;
};

}  // namespace

StatusOr<v1::StepGraph> ReadGraphFile(std::string_view text) {
  return GraphReader().Read(text);
}

}  // namespace reprise::formats
