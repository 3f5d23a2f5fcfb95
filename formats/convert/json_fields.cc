// SPDX-License-Identifier: Apache-2.0
#include "formats/convert/json_fields.h"

#include <google/protobuf/descriptor.h>
#include <google/protobuf/util/json_util.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/str_cat.h"
#include "formats/convert/graph_names.h"

namespace reprise::formats {

namespace {

using Json = nlohmann::json;
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;

std::string ShownValue(const Json& value) {
  if (value.is_object()) return "an object";
  if (value.is_array()) return "a list";
  return value.dump(-1, ' ', false, Json::error_handler_t::replace)
      .substr(0, 40);
}

// Returns field `f` of `m`, or its element `i` if it is repeated (i < 0:
// singular).
nlohmann::ordered_json ElementValue(const Message& m, const FieldDescriptor* f,
                                    int i) {
  const auto* r = m.GetReflection();
  const bool one = i < 0;
  switch (f->cpp_type()) {
    case FieldDescriptor::CPPTYPE_INT32:
      return one ? r->GetInt32(m, f) : r->GetRepeatedInt32(m, f, i);
    case FieldDescriptor::CPPTYPE_INT64:
      return one ? r->GetInt64(m, f) : r->GetRepeatedInt64(m, f, i);
    case FieldDescriptor::CPPTYPE_UINT32:
      return one ? r->GetUInt32(m, f) : r->GetRepeatedUInt32(m, f, i);
    case FieldDescriptor::CPPTYPE_UINT64:
      return one ? r->GetUInt64(m, f) : r->GetRepeatedUInt64(m, f, i);
    case FieldDescriptor::CPPTYPE_DOUBLE:
      return one ? r->GetDouble(m, f) : r->GetRepeatedDouble(m, f, i);
    case FieldDescriptor::CPPTYPE_FLOAT:
      return one ? r->GetFloat(m, f) : r->GetRepeatedFloat(m, f, i);
    case FieldDescriptor::CPPTYPE_BOOL:
      return one ? r->GetBool(m, f) : r->GetRepeatedBool(m, f, i);
    case FieldDescriptor::CPPTYPE_ENUM:
      return one ? r->GetEnum(m, f)->name()
                 : r->GetRepeatedEnum(m, f, i)->name();
    case FieldDescriptor::CPPTYPE_STRING:
      return one ? r->GetString(m, f) : r->GetRepeatedString(m, f, i);
    case FieldDescriptor::CPPTYPE_MESSAGE:
      return ToJson(one ? r->GetMessage(m, f) : r->GetRepeatedMessage(m, f, i));
  }
  return nullptr;
}

// Returns a field, as a list if it is repeated.
nlohmann::ordered_json FieldValue(const Message& message,
                                  const FieldDescriptor* field) {
  if (!field->is_repeated()) return ElementValue(message, field, -1);
  auto list = nlohmann::ordered_json::array();
  const int count = message.GetReflection()->FieldSize(message, field);
  for (int i = 0; i < count; ++i)
    list.push_back(ElementValue(message, field, i));
  return list;
}

// Returns what is wrong with a value that is no integer from 0 to `most`.
std::string WhyNot(const Json& value, int64_t most) {
  const bool is_negative = value.is_number_integer() && value < 0;
  return StrCat(is_negative                 ? "must not be negative"
                : value.is_number_integer() ? StrCat("must be at most ", most)
                                            : "must be an integer",
                ", got ", ShownValue(value));
}

}  // namespace

void JsonFields::Read(bool needed, std::initializer_list<const char*> keys) {
  for (const char* key : keys) {
    if (const Json* value = Find(key, needed)) {
      Set(*to_.GetDescriptor()->FindFieldByName(key), *value);
    }
  }
}

void JsonFields::Word(bool needed, const char* key,
                      std::span<const std::string_view> words) {
  const Json* value = Find(key, needed);
  if (value == nullptr) return;
  const std::string text =
      value->is_string() ? value->get<std::string>() : std::string();
  const auto word = std::find(words.begin(), words.end(), text);
  if (word == words.end() || text.empty()) {
    return Fail(
        StrCat(key, ": must be ", Known(words), ", got ", ShownValue(*value)));
  }
  to_.GetReflection()->SetEnumValue(&to_,
                                    to_.GetDescriptor()->FindFieldByName(key),
                                    static_cast<int>(word - words.begin()));
}

const Json* JsonFields::List(bool needed, const char* key) {
  const Json* value = Find(key, needed);
  if (value == nullptr || value->is_array()) return value;
  Fail(StrCat(key, ": must be a list, got ", ShownValue(*value)));
  return nullptr;
}

void JsonFields::Inside(const Json& object, const std::string& where,
                        Message& to, std::initializer_list<const char*> needed,
                        std::initializer_list<const char*> others) {
  if (!object.is_object()) return Fail(where + ": must be an object");
  JsonFields in(object, to);
  in.Read(true, needed);
  in.Read(false, others);
  if (!in.status().ok()) Fail(StrCat(where, ".", in.status().message()));
}

void JsonFields::Fail(std::string message) {
  if (status_.ok()) status_ = InvalidArgument(std::move(message));
}

std::optional<int64_t> JsonFields::Integer(const Json& value, int64_t most) {
  if (!value.is_number_integer()) return std::nullopt;
  if (value.is_number_unsigned() &&
      value.get<uint64_t>() > static_cast<uint64_t>(most)) {
    return std::nullopt;
  }
  const auto number = value.get<int64_t>();
  if (number < 0) return std::nullopt;
  return number;
}

const Json* JsonFields::Find(const char* key, bool needed) {
  const auto it = object_.find(key);
  if (it != object_.end() && !it->is_null()) return &*it;
  if (needed) Fail(StrCat(key, ": missing"));
  return nullptr;
}

void JsonFields::Set(const FieldDescriptor& field, const Json& value) {
  const auto* fields = to_.GetReflection();
  const auto expect = [&](bool is_right, const std::string& what) {
    if (!is_right) {
      Fail(StrCat(field.name(), ": must be ", what, ", got ",
                  ShownValue(value)));
    }
    return is_right;
  };
  const auto number = [&](int64_t most) {
    const auto found = Integer(value, most);
    if (!found) Fail(StrCat(field.name(), ": ", WhyNot(value, most)));
    return found.value_or(0);
  };
  if (field.is_repeated()) {
    const bool are_ids = field.cpp_type() == FieldDescriptor::CPPTYPE_UINT32;
    const int64_t most = are_ids ? kMaxId : std::numeric_limits<int64_t>::max();
    if (!expect(value.is_array(),
                are_ids ? "a list of ids" : "a list of integers")) {
      return;
    }
    for (size_t i = 0; i < value.size(); ++i) {
      const auto found = Integer(value[i], most);
      if (!found) {
        return Fail(
            StrCat(field.name(), "[", i, "]: ", WhyNot(value[i], most)));
      }
      if (are_ids) {
        fields->AddUInt32(&to_, &field, static_cast<uint32_t>(*found));
      } else {
        fields->AddInt64(&to_, &field, *found);
      }
    }
    return;
  }
  switch (field.cpp_type()) {
    case FieldDescriptor::CPPTYPE_UINT32:
      return fields->SetUInt32(&to_, &field,
                               static_cast<uint32_t>(number(kMaxId)));
    case FieldDescriptor::CPPTYPE_INT32:
      return fields->SetInt32(&to_, &field, static_cast<int>(number(kMaxId)));
    case FieldDescriptor::CPPTYPE_INT64:
      return fields->SetInt64(&to_, &field,
                              number(std::numeric_limits<int64_t>::max()));
    case FieldDescriptor::CPPTYPE_DOUBLE:
      if (expect(value.is_number() && std::isfinite(value.get<double>()),
                 "a number")) {
        fields->SetDouble(&to_, &field, value.get<double>());
      }
      return;
    case FieldDescriptor::CPPTYPE_BOOL:
      if (expect(value.is_boolean(), "true or false")) {
        fields->SetBool(&to_, &field, value.get<bool>());
      }
      return;
    default:
      if (expect(value.is_string(), "a string")) {
        fields->SetString(&to_, &field, value.get<std::string>());
      }
  }
}

Status ReadProto3(std::string_view json, Message& to) {
  google::protobuf::util::JsonParseOptions options;
  options.ignore_unknown_fields = true;
  const auto read = google::protobuf::util::JsonStringToMessage(
      {json.data(), json.size()}, &to, options);
  return read.ok() ? OkStatus() : InvalidArgument(std::string(read.message()));
}

std::string JsonText(std::string_view text) {
  return Json(text).dump(-1, ' ', false, Json::error_handler_t::replace);
}

nlohmann::ordered_json ToJson(const Message& message) {
  auto json = nlohmann::ordered_json::object();
  const auto* type = message.GetDescriptor();
  for (int i = 0; i < type->field_count(); ++i) {
    const FieldDescriptor* field = type->field(i);
    if (!field->has_presence() ||
        message.GetReflection()->HasField(message, field)) {
      json[field->name()] = FieldValue(message, field);
    }
  }
  return json;
}

std::string JsonOf(const Message& message, const char* field) {
  return FieldValue(message, message.GetDescriptor()->FindFieldByName(field))
      .dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace reprise::formats
