// SPDX-License-Identifier: Apache-2.0
//
// Reads a pickle of plain data, protocols 2 to 5, as a stream and without
// executing any of its code: containers, text, bytes, numbers, None. A pickle
// is a program; instructions that import, call or construct objects are
// rejected, with their name and byte, and so are all others that plain data
// does not need.
//
// A pickle of a gigabyte does not fit into memory, and its memo refers to
// everything that was ever created. So the caller may take the items of long
// lists as they are read:
//
//   root dict ── "device_traces" ── [ [ item, item, ... ], ... ]
//                                       ▲ taken, then forgotten
//
// A taken item is forgotten together with the containers in it, except for what
// later items share: texts, dicts of plain values with the key `shared_dict`
// (stack frames), and lists of such dicts under the key `shared_list` (stacks,
// which PyTorch shares between a block and the events of its memory). Equal
// stacks are kept once; when half of the memory limit is used, no further ones
// are kept. A later reference to a forgotten value reads as kGone. Memory is
// limited; a pickle that needs more is rejected.
//
// O(bytes) time; O(values held) memory. Opcodes: CPython's Lib/pickletools.py.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/status.h"
#include "formats/import/byte_source.h"

namespace reprise::formats {

// The values of a pickle of plain data. Containers are reference-counted: a
// list may be referred to from two places. Nothing here calls, imports or
// constructs anything.
//
// There are no cycles: a container that was put into another may not change any
// more (`sealed`), and none is put into itself, so reference counts free
// everything. Depth is limited because freeing is recursive.

class PickleNode;

class PickleValue {
 public:
  enum class Kind : uint8_t {
    kNone,
    kBool,
    kInt,    // in 64 bits
    kUint,   // above 2^63
    kFloat,  // whose value nobody needs
    kGone,   // was read, taken and forgotten
    kMark,   // used only by the reader
    kText,   // this and all that follow are nodes
    kBytes,
    kList,
    kTuple,
    kDict,  // items are key, value, key, value, ...
  };

  PickleValue() = default;
  explicit PickleValue(Kind kind) : kind_(kind) {}
  static PickleValue Int(int64_t value);
  static PickleValue Uint(uint64_t value);
  static PickleValue Bool(bool value);
  static PickleValue Node(Kind kind);

  PickleValue(const PickleValue& other);
  PickleValue(PickleValue&& other) noexcept
      : kind_(std::exchange(other.kind_, Kind::kNone)), bits_(other.bits_) {}
  PickleValue& operator=(PickleValue other) noexcept {
    std::swap(kind_, other.kind_);
    std::swap(bits_, other.bits_);
    return *this;
  }
  ~PickleValue() { Release(); }

  Kind kind() const { return kind_; }
  bool is_node() const { return kind_ >= Kind::kText; }
  bool is_list() const { return kind_ == Kind::kList; }
  bool is_dict() const { return kind_ == Kind::kDict; }
  bool is_text() const { return kind_ == Kind::kText; }
  PickleNode& node() const { return *bits_.node; }

  // Integers of either sign; false for other kinds and for values from 2^63 on.
  bool AsInt(int64_t& out) const;
  // Integers as 64 bits: for addresses.
  bool AsAddress(uint64_t& out) const;
  std::string_view text() const;  // empty for every other kind

  // Returns the value of a key; null if there is none or this is not a dict.
  const PickleValue* Find(std::string_view key) const;
  // The same as an integer, address or text; as if of another kind where there
  // is none.
  bool IntAt(std::string_view key, int64_t& out) const {
    const PickleValue* value = Find(key);
    return value != nullptr && value->AsInt(out);
  }
  bool AddressAt(std::string_view key, uint64_t& out) const {
    const PickleValue* value = Find(key);
    return value != nullptr && value->AsAddress(out);
  }
  std::string_view TextAt(std::string_view key) const {
    const PickleValue* value = Find(key);
    return value == nullptr ? std::string_view() : value->text();
  }
  const std::vector<PickleValue>& items() const;

 private:
  void Release();

  Kind kind_ = Kind::kNone;
  union {
    int64_t number;
    PickleNode* node;
  } bits_ = {.number = 0};
};

class PickleNode {
 public:
  static constexpr uint32_t kNotInMemo = UINT32_MAX;

  PickleNode() { Charge(kNodeBytes); }
  ~PickleNode() { held_bytes -= charged_; }
  PickleNode(const PickleNode&) = delete;
  PickleNode& operator=(const PickleNode&) = delete;

  void Charge(int64_t bytes) {
    charged_ += bytes;
    held_bytes += bytes;
  }

  std::string text;
  std::vector<PickleValue> items;
  uint32_t memo = kNotInMemo;
  bool sealed = false;
  bool kept = false;   // stays in the memo until the end
  uint16_t depth = 0;  // nesting depth of the containers in it

  // Estimated bytes of all nodes of this thread, including memo entries.
  static inline thread_local int64_t held_bytes = 0;

 private:
  friend class PickleValue;
  static constexpr int64_t kNodeBytes = 160;

  int64_t charged_ = 0;
  uint32_t references_ = 1;
};

inline PickleValue PickleValue::Int(int64_t value) {
  PickleValue made(Kind::kInt);
  made.bits_.number = value;
  return made;
}
inline PickleValue PickleValue::Uint(uint64_t value) {
  PickleValue made(Kind::kUint);
  made.bits_.number = static_cast<int64_t>(value);
  return made;
}
inline PickleValue PickleValue::Bool(bool value) {
  PickleValue made(Kind::kBool);
  made.bits_.number = value;
  return made;
}
inline PickleValue PickleValue::Node(Kind kind) {
  PickleValue made(kind);
  made.bits_.node = new PickleNode;
  return made;
}
inline PickleValue::PickleValue(const PickleValue& other)
    : kind_(other.kind_), bits_(other.bits_) {
  if (is_node()) ++bits_.node->references_;
}
inline void PickleValue::Release() {
  if (is_node() && --bits_.node->references_ == 0) delete bits_.node;
}

inline bool PickleValue::AsInt(int64_t& out) const {
  if (kind_ != Kind::kInt && kind_ != Kind::kBool) return false;
  out = bits_.number;
  return true;
}
inline bool PickleValue::AsAddress(uint64_t& out) const {
  if (kind_ != Kind::kInt && kind_ != Kind::kUint) return false;
  out = static_cast<uint64_t>(bits_.number);
  return true;
}
inline std::string_view PickleValue::text() const {
  return is_text() ? std::string_view(bits_.node->text) : std::string_view();
}
inline const std::vector<PickleValue>& PickleValue::items() const {
  static const std::vector<PickleValue> none;
  return is_node() ? bits_.node->items : none;
}
inline const PickleValue* PickleValue::Find(std::string_view key) const {
  if (!is_dict()) return nullptr;
  const std::vector<PickleValue>& all = bits_.node->items;
  // The last duplicate counts, as in Python.
  for (size_t i = all.size(); i >= 2; i -= 2) {
    if (all[i - 2].is_text() && all[i - 2].text() == key) return &all[i - 1];
  }
  return nullptr;
}

struct PickleLimits {
  uint64_t held_bytes = 256 << 20;  // of all values at any time
  uint32_t text_bytes = 16 << 20;   // of one text
  int depth = 64;
  std::string_view shared_dict = "filename";
  std::string_view shared_list = "frames";
  // Texts under this key are not shared between items, and forgotten with their
  // item.
  std::string_view own_text = "user_metadata";
};

// Called when an item is appended to a list. `key` is the text of the dict
// entry that holds the list, or the list of lists around it; `nested` is the
// number of lists in between; `position` is the index of the inner list in the
// outer one. Returns whether the caller took the item.
struct PickleSpot {
  std::string_view key;
  int nested = 0;
  size_t position = 0;
};
using TakePickleItem =
    std::function<StatusOr<bool>(const PickleSpot&, const PickleValue& item)>;

// Returns the value on top when the pickle ends, without the items that were
// taken. INVALID_ARGUMENT `byte 17: ...`; RESOURCE_EXHAUSTED beyond a limit.
StatusOr<PickleValue> ReadPickle(ByteSource& source, const TakePickleItem& take,
                                 const PickleLimits& limits = {});

}  // namespace reprise::formats
