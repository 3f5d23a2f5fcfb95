// SPDX-License-Identifier: Apache-2.0
#include <cstdint>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "base/str_cat.h"
#include "formats/convert/graph_json.h"
#include "formats/convert/graph_json_keys.h"
#include "formats/convert/graph_names.h"
#include "formats/convert/graph_proto.h"

namespace reprise::formats {
namespace {

using Json = nlohmann::json;
using graph_json::Key;
using graph_json::kKeys;
using graph_json::kWanted;
using graph_json::Place;
using graph_json::Type;

class GraphReader : public nlohmann::json_sax<Json> {
 public:
  bool null() override { return Wrong("null"); }
  bool boolean(bool value) override {
    if (Ignored()) return true;
    if (key_ == nullptr || key_->type != Type::kFlag) {
      return Wrong("true or false");
    }
    auto& message = Current();
    const auto* field =
        message.GetDescriptor()->FindFieldByName(std::string(key_->name));
    message.GetReflection()->SetBool(&message, field, value);
    return Done();
  }

  bool number_integer(number_integer_t value) override {
    return Integer(value);
  }
  bool number_unsigned(number_unsigned_t value) override {
    if (value > std::numeric_limits<int64_t>::max()) {
      return Wrong("a number above 2^63-1");
    }
    return Integer(static_cast<int64_t>(value));
  }
  bool number_float(number_float_t, const string_t&) override {
    return Wrong("a fraction or a number above 2^63-1");
  }
  bool string(string_t& text) override {
    if (Ignored()) return true;
    if (key_ == nullptr || in_list_) return Wrong("a string");
    auto& message = Current();
    const auto* field =
        message.GetDescriptor()->FindFieldByName(std::string(key_->name));
    const auto* fields = message.GetReflection();
    const std::string got = StrCat("\"", text.substr(0, 40), "\"");
    int number = 0;
    switch (key_->type) {
      case Type::kText:
        fields->SetString(&message, field, std::move(text));
        return Done();
      case Type::kPhase:
        number = NumberOf(kPhaseNames, text);
        break;
      case Type::kKind:
        number = NumberOf(kKindNames, text);
        break;
      case Type::kCategory:
        number = NumberOf(kCategoryNames, text);
        break;
      default:
        return Wrong("a string");
    }
    if (number == 0) {
      const std::string known = key_->type == Type::kPhase ? Known(kPhaseNames)
                                : key_->type == Type::kKind
                                    ? Known(kKindNames)
                                    : Known(kCategoryNames);
      return Fail(StrCat(Where(), ": must be ", known, ", got ", got));
    }
    fields->SetEnumValue(&message, field, number);
    return Done();
  }

  bool binary(binary_t&) override { return Wrong("binary"); }
  bool key(string_t& name) override {
    if (Skipping()) return true;
    Frame& frame = frames_.back();
    for (size_t i = 0; i < std::size(kKeys); ++i) {
      if (kKeys[i].place != frame.place || kKeys[i].name != name) continue;
      key_ = &kKeys[i];
      const uint64_t bit = uint64_t{1} << i;
      if (frame.seen & bit) return Fail(StrCat(Where(), ": given twice"));
      frame.seen |= bit;
      return true;
    }
    key_ = nullptr;
    ignore_next_ = true;
    return true;
  }

  bool start_object(size_t) override {
    if (Skipping() || ignore_next_) {
      ignore_next_ = false;
      ++skip_depth_;
      return true;
    }
    if (frames_.empty()) {
      frames_.push_back({Place::kRoot});
      return true;
    }
    if (key_ != nullptr) return Wrong("an object");
    int count = 0;
    switch (frames_.back().place) {
      case Place::kStaticParts:
        graph.add_static_parts();
        count = graph.static_parts_size();
        frames_.push_back({Place::kStaticPart});
        break;
      case Place::kStorages:
        graph.add_storages();
        count = graph.storages_size();
        frames_.push_back({Place::kStorage});
        break;
      case Place::kOps:
        graph.add_ops();
        count = graph.ops_size();
        frames_.push_back({Place::kOp});
        break;
      case Place::kTensors:
        graph.add_tensors();
        count = graph.tensors_size();
        frames_.push_back({Place::kTensor});
        break;
      default:
        return Wrong("an object");
    }
    if (count <= kMaxGraphItems) return true;
    frames_.pop_back();
    return Fail(StrCat(Where(), ": at most ", kMaxGraphItems, " are accepted"));
  }

  bool end_object() override {
    if (Skipping()) {
      --skip_depth_;
      return true;
    }
    const Frame frame = frames_.back();
    for (size_t i = 0; i < std::size(kKeys); ++i) {
      const Key& key = kKeys[i];
      if (key.place != frame.place || !key.needed) continue;
      if ((frame.seen >> i & 1) == 0) {
        return Fail(StrCat(Where(), ": \"", key.name, "\" is missing"));
      }
    }
    frames_.pop_back();
    return true;
  }

  bool start_array(size_t) override {
    if (Skipping() || ignore_next_) {
      ignore_next_ = false;
      ++skip_depth_;
      return true;
    }
    if (key_ == nullptr || in_list_) return Wrong("a list");
    switch (key_->type) {
      case Type::kIds:
      case Type::kSizes:
        in_list_ = true;
        list_index_ = 0;
        return true;
      case Type::kStaticList:
        frames_.push_back({Place::kStaticParts});
        break;
      case Type::kStorageList:
        frames_.push_back({Place::kStorages});
        break;
      case Type::kOpList:
        frames_.push_back({Place::kOps});
        break;
      case Type::kTensorList:
        frames_.push_back({Place::kTensors});
        break;
      default:
        return Wrong("a list");
    }
    key_ = nullptr;
    return true;
  }

  bool end_array() override {
    if (Skipping()) {
      --skip_depth_;
      return true;
    }
    if (in_list_) {
      in_list_ = false;
      key_ = nullptr;
    } else {
      frames_.pop_back();
    }
    return true;
  }

  // Unreachable: ScanJson has accepted this text.
  bool parse_error(size_t position, const std::string&,
                   const nlohmann::detail::exception&) override {
    return Fail(StrCat("byte ", position, ": not valid JSON"));
  }

  v1::StepGraph graph;
  Status status;

 private:
  struct Frame {
    Place place;
    uint64_t seen = 0;  // bit i: kKeys[i] occurred
  };

  google::protobuf::Message& Current() {
    switch (frames_.back().place) {
      case Place::kStaticPart:
        return *graph.mutable_static_parts()->rbegin();
      case Place::kStorage:
        return *graph.mutable_storages()->rbegin();
      case Place::kOp:
        return *graph.mutable_ops()->rbegin();
      case Place::kTensor:
        return *graph.mutable_tensors()->rbegin();
      default:
        return graph;
    }
  }

  std::string Where() const {
    std::string where;
    for (const Frame& frame : frames_) {
      switch (frame.place) {
        case Place::kStaticParts:
          where = "static_parts";
          break;
        case Place::kStaticPart:
          where = StrCat("static_parts[", graph.static_parts_size() - 1, "]");
          break;
        case Place::kStorages:
          where = "storages";
          break;
        case Place::kOps:
          where = "ops";
          break;
        case Place::kTensors:
          where = "tensors";
          break;
        case Place::kStorage:
          where = StrCat("storages[", graph.storages_size() - 1, "]");
          break;
        case Place::kOp:
          where = StrCat("ops[", graph.ops_size() - 1, "]");
          break;
        case Place::kTensor:
          where = StrCat("tensors[", graph.tensors_size() - 1, "]");
          break;
        case Place::kRoot:
          break;
      }
    }
    if (key_ != nullptr) {
      where += StrCat(where.empty() ? "" : ".", key_->name);
    }
    if (in_list_) where += StrCat("[", list_index_, "]");
    return where.empty() ? "the file" : where;
  }
  // "ops[17].reads[2]"
  bool Fail(std::string message) {
    status = InvalidArgument(std::move(message));
    return false;
  }
  // Reports that the value has the wrong type for its place.
  bool Wrong(const char* got) {
    if (Ignored()) return true;
    const char* wanted = "an object";
    if (in_list_) {
      wanted = "an integer";
    } else if (key_ != nullptr) {
      wanted = kWanted[static_cast<int>(key_->type)];
    }
    return Fail(StrCat(Where(), ": must be ", wanted, ", got ", got));
  }

  bool Integer(int64_t value) {
    if (Ignored()) return true;
    if (key_ == nullptr) return Wrong("a number");
    const bool is_id = key_->type == Type::kId || key_->type == Type::kIds;
    const bool is_size =
        key_->type == Type::kBytes || key_->type == Type::kSizes;
    const bool listed = key_->type == Type::kIds || key_->type == Type::kSizes;
    if ((!is_id && !is_size) || listed != in_list_) return Wrong("a number");
    if (value < 0) {
      return Fail(StrCat(Where(), ": must not be negative, got ", value));
    }
    if (is_id && value > std::numeric_limits<int32_t>::max()) {
      return Fail(StrCat(Where(), ": ids end at 2147483647, got ", value));
    }
    auto& message = Current();
    const auto* field =
        message.GetDescriptor()->FindFieldByName(std::string(key_->name));
    const auto* fields = message.GetReflection();
    const auto id = static_cast<uint32_t>(value);
    switch (key_->type) {
      case Type::kId:
        fields->SetUInt32(&message, field, id);
        break;
      case Type::kIds:
        fields->AddUInt32(&message, field, id);
        break;
      case Type::kSizes:
        fields->AddInt64(&message, field, value);
        break;
      default:
        fields->SetInt64(&message, field, value);
        break;
    }
    return Done();
  }

  bool Skipping() const { return skip_depth_ > 0; }
  // Returns whether the value is to be ignored; a scalar ends its unknown key.
  bool Ignored() {
    if (Skipping()) return true;
    if (!frames_.empty() && key_ == nullptr && ignore_next_) {
      ignore_next_ = false;
      return true;
    }
    return false;
  }
  bool Done() {
    if (!in_list_) key_ = nullptr;
    ++list_index_;
    return true;
  }

  std::vector<Frame> frames_;
  const Key* key_ = nullptr;
  bool ignore_next_ = false;
  int skip_depth_ = 0;
  bool in_list_ = false;  // in a list of ids or sizes
  int list_index_ = 0;
};

}  // namespace

StatusOr<v1::StepGraph> ReadGraphFile(std::string_view text) {
  GraphReader reader;
  const bool ok = Json::sax_parse(text.begin(), text.end(), &reader);
  if (!reader.status.ok()) return reader.status;
  if (!ok) return InvalidArgument("not valid JSON");
  return std::move(reader.graph);
}

}  // namespace reprise::formats
