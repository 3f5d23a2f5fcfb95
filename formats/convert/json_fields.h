// SPDX-License-Identifier: Apache-2.0
//
// Keys of a JSON object and fields of a message that have the same names.
//
//   JsonFields in(json, plan);
//   in.Read(/*needed=*/true, {"budget_bytes", "feasible"});
//   in.Word(false, "free_policy", kPolicies);
//   RETURN_IF_ERROR(in.status());     // "budget_bytes: missing"
#pragma once

#include <google/protobuf/message.h>

#include <cstdint>
#include <initializer_list>
#include <limits>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "base/status.h"

namespace reprise::formats {

// Reads the keys of one object, and keeps the first error. Numbers are not
// negative, and ids are those of a schedule. A key that is null is absent.
class JsonFields {
 public:
  static constexpr int64_t kMaxId = std::numeric_limits<int32_t>::max();

  JsonFields(const nlohmann::json& object, google::protobuf::Message& to)
      : object_(object), to_(to) {}

  // Reads texts, numbers, flags and lists of ids. `needed`: the keys must be
  // there.
  void Read(bool needed, std::initializer_list<const char*> keys);

  // Reads a word of an enum, whose number is the place of the word.
  void Word(bool needed, const char* key,
            std::span<const std::string_view> words);

  // Returns the list at a key; null if there is none.
  const nlohmann::json* List(bool needed, const char* key);

  // Reads an object inside this one, which errors call `where`.
  void Inside(const nlohmann::json& object, const std::string& where,
              google::protobuf::Message& to,
              std::initializer_list<const char*> needed,
              std::initializer_list<const char*> others = {});

  void Fail(std::string message);
  const Status& status() const { return status_; }

  // Returns an integer from 0 to `most`; nothing if it is none.
  static std::optional<int64_t> Integer(const nlohmann::json& value,
                                        int64_t most);

 private:
  const nlohmann::json* Find(const char* key, bool needed);
  void Set(const google::protobuf::FieldDescriptor& field,
           const nlohmann::json& value);

  const nlohmann::json& object_;
  google::protobuf::Message& to_;
  Status status_;
};

// Reads a message from proto3 JSON; keys that are no fields are ignored. An error
// is in the words of protobuf, and does not say of what it is.
Status ReadProto3(std::string_view json, google::protobuf::Message& to);

// Returns a text as a JSON string; bytes that are not UTF-8 are replaced.
std::string JsonText(std::string_view text);

// Returns a message as JSON: its fields by their names, in their order, 64-bit
// integers as numbers. Those without a value are absent if that can be told.
nlohmann::ordered_json ToJson(const google::protobuf::Message& message);

// Returns a field as JSON.
std::string JsonOf(const google::protobuf::Message& message, const char* field);

}  // namespace reprise::formats
