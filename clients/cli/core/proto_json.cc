// SPDX-License-Identifier: Apache-2.0
#include "clients/cli/core/proto_json.h"

#include <google/protobuf/descriptor.h>

#include <nlohmann/json.hpp>

namespace reprise::cli {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
// Keeps the order of the fields.
using Json = nlohmann::ordered_json;

Json ToJson(const Message& message);

// Returns field `f` of `m`, or its element `i` if it is repeated (i < 0:
// singular).
Json Value(const Message& m, const FieldDescriptor* f, int i) {
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

Json ToJson(const Message& message) {
  Json json = Json::object();
  const auto* type = message.GetDescriptor();
  const auto* reflection = message.GetReflection();
  for (int i = 0; i < type->field_count(); ++i) {
    const FieldDescriptor* field = type->field(i);
    if (field->is_repeated()) {
      Json list = Json::array();
      for (int k = 0; k < reflection->FieldSize(message, field); ++k) {
        list.push_back(Value(message, field, k));
      }
      json[field->name()] = std::move(list);
    } else if (!field->has_presence() || reflection->HasField(message, field)) {
      json[field->name()] = Value(message, field, -1);
    }
  }
  return json;
}

}  // namespace

std::string ProtoToJson(const Message& message) {
  return ToJson(message).dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace reprise::cli
