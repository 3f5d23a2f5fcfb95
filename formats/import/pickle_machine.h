// SPDX-License-Identifier: Apache-2.0
//
// The stack machine that executes a pickle: a stack of values, marks on it, and
// a memo of values that can be referred to again. This file has the effects of
// the instructions; pickle_reader.cc, the only file that includes it, decides
// which instructions are allowed.
#pragma once

#include <unordered_map>

#include "base/str_cat.h"
#include "formats/import/pickle_reader.h"

namespace reprise::formats {

class PickleMachine {
 public:
  PickleMachine(ByteSource& source, const TakePickleItem& take,
                const PickleLimits& limits)
      : source_(source), take_(take), limits_(limits) {}

  StatusOr<PickleValue> Run() {
    held_before_ = PickleNode::held_bytes;
    while (true) {
      at_ = source_.position();
      const int opcode = source_.Next();
      if (opcode < 0) return Ended();
      if (at_ == 0 && opcode != 0x80) {
        return Wrong("is not a pickle of protocol 2 to 5");
      }
      if (opcode == '.') break;
      RETURN_IF_ERROR(Step(opcode));
      if (stack_.size() > kMostStack) {
        return TooMuch("more than 4 million values wait to be put somewhere");
      }
      const int64_t held = Held();
      if (held > static_cast<int64_t>(limits_.held_bytes)) {
        return TooMuch(StrCat("needs more than ", limits_.held_bytes >> 20,
                              " MiB at once"));
      }
    }
    if (stack_.size() != 1 || stack_[0].kind() == Kind::kMark) {
      return Wrong("the pickle ends with values that were not used");
    }
    return std::move(stack_[0]);
  }

 private:
  using Kind = PickleValue::Kind;

  static constexpr size_t kMostStack = size_t{1} << 22;
  // Estimated size of an entry in a hash table.
  static constexpr int64_t kPlaceBytes = 64;

  Status Wrong(std::string_view what) const {
    return InvalidArgument(StrCat("byte ", at_, ": ", what));
  }
  Status TooMuch(std::string_view what) const {
    return ResourceExhausted(StrCat("byte ", at_, ": ", what));
  }
  Status Ended() const {
    if (!source_.status().ok()) return source_.status();
    return InvalidArgument(
        StrCat("byte ", source_.position(), ": the pickle ends too early"));
  }

  // Bytes of all values and of the memo's entries for kept lists.
  int64_t Held() const {
    return PickleNode::held_bytes - held_before_ + kept_places_ * kPlaceBytes;
  }

  Status ReadUnsigned(int bytes, uint64_t& out) {
    unsigned char raw[8];
    if (!source_.Read(reinterpret_cast<char*>(raw),
                      static_cast<size_t>(bytes))) {
      return Ended();
    }
    out = 0;
    for (int i = bytes; i-- > 0;) out = out << 8 | raw[i];
    return OkStatus();
  }

  Status ReadInt(int bytes, bool is_signed) {
    uint64_t raw = 0;
    RETURN_IF_ERROR(ReadUnsigned(bytes, raw));
    auto value = static_cast<int64_t>(raw);
    if (is_signed && bytes < 8) {
      const int shift = 64 - 8 * bytes;
      value = static_cast<int64_t>(raw << shift) >> shift;
    }
    stack_.push_back(PickleValue::Int(value));
    return OkStatus();
  }

  // LONG1: an integer of any length, little-endian, two's complement.
  Status ReadLong() {
    uint64_t size = 0;
    RETURN_IF_ERROR(ReadUnsigned(1, size));
    unsigned char raw[255];
    if (!source_.Read(reinterpret_cast<char*>(raw), size)) return Ended();
    const bool negative = size > 0 && (raw[size - 1] & 0x80) != 0;
    uint64_t value = negative ? ~uint64_t{0} : 0;
    for (uint64_t i = 0; i < size; ++i) {
      if (i < 8) {
        value &= ~(uint64_t{0xff} << (8 * i));
        value |= uint64_t{raw[i]} << (8 * i);
      } else if (raw[i] != (negative ? 0xff : 0)) {
        return Wrong("an integer of more than 64 bits");
      }
    }
    if (negative && (value >> 63) == 0) {
      return Wrong("an integer of more than 64 bits");
    }
    stack_.push_back(!negative && (value >> 63) != 0
                         ? PickleValue::Uint(value)
                         : PickleValue::Int(static_cast<int64_t>(value)));
    return OkStatus();
  }

  Status ReadText(Kind kind, int length_bytes) {
    uint64_t size = 0;
    RETURN_IF_ERROR(ReadUnsigned(length_bytes, size));
    if (size > limits_.text_bytes) {
      return TooMuch(StrCat("a text of ", size, " bytes, at most ",
                            limits_.text_bytes, " are read"));
    }
    PickleValue value = PickleValue::Node(kind);
    std::string& text = value.node().text;
    // In pieces: the stated length is not trusted beyond the bytes that exist.
    while (text.size() < size) {
      const size_t old = text.size();
      const size_t some = std::min<size_t>(size - old, 64 << 10);
      text.resize(old + some);
      if (!source_.Read(text.data() + old, some)) return Ended();
    }
    value.node().Charge(static_cast<int64_t>(size));
    stack_.push_back(std::move(value));
    return OkStatus();
  }

  // ---- Containers ----------------------------------------------------------

  // Finds the position of the topmost mark.
  Status FindMark(size_t& out) const {
    for (size_t i = stack_.size(); i-- > 0;) {
      if (stack_[i].kind() == Kind::kMark) {
        out = i;
        return OkStatus();
      }
    }
    return Wrong("an instruction needs a mark and there is none");
  }

  Status Put(PickleNode& into, PickleValue value) {
    if (value.kind() == Kind::kMark)
      return Wrong("a mark where a value is due");
    if (value.is_node()) {
      PickleNode& node = value.node();
      if (&node == &into || into.sealed) {
        return Wrong("a container that holds itself");
      }
      node.sealed = true;
      if (value.kind() >= Kind::kList) {
        const int depth = node.depth + 1;
        if (depth > limits_.depth) {
          return TooMuch(StrCat("containers in containers, more than ",
                                limits_.depth, " deep"));
        }
        into.depth = std::max(into.depth, static_cast<uint16_t>(depth));
      }
    } else if (into.sealed) {
      return Wrong("a container that changes after it was put into another");
    }
    into.Charge(sizeof(PickleValue));
    into.items.push_back(std::move(value));
    return OkStatus();
  }

  Status Append(size_t list_at, size_t first) {
    if (list_at >= stack_.size() || !stack_[list_at].is_list()) {
      return Wrong("an item is added to something that is not a list");
    }
    const PickleValue list = stack_[list_at];
    PickleSpot spot;
    const bool streams = take_ && Spot(list_at, spot);
    for (size_t i = first; i < stack_.size(); ++i) {
      if (streams) {
        StatusOr<bool> taken = take_(spot, stack_[i]);
        if (!taken.ok()) {
          return Status(taken.status().code(),
                        StrCat("byte ", at_, ": ", taken.status().message()));
        }
        if (*taken) {
          Forget(stack_[i], /*top=*/true);
          stack_[i] = PickleValue();
          continue;
        }
      }
      RETURN_IF_ERROR(Put(list.node(), std::move(stack_[i])));
    }
    return OkStatus();
  }

  // Determines where a list that is being filled belongs:
  //   ... key list                     nested 0
  //   ... key outer [mark other ...] list   nested 1
  bool Spot(size_t at, PickleSpot& spot) const {
    if (at == 0) return false;
    if (stack_[at - 1].is_text()) {
      spot = {.key = stack_[at - 1].text(), .nested = 0, .position = 0};
      return true;
    }
    size_t outer = at - 1;
    size_t before = 0;
    if (!(stack_[outer].is_list() && outer > 0 &&
          stack_[outer - 1].is_text())) {
      while (outer > 0 && stack_[outer].kind() != Kind::kMark &&
             before < kMostLists) {
        --outer;
        ++before;
      }
      if (outer == 0 || stack_[outer].kind() != Kind::kMark) return false;
      --outer;
    }
    if (outer == 0 || !stack_[outer].is_list() ||
        !stack_[outer - 1].is_text()) {
      return false;
    }
    spot = {.key = stack_[outer - 1].text(),
            .nested = 1,
            .position = stack_[outer].items().size() + before};
    return true;
  }
  // Limit for how many lists are searched within a list, such as one per
  // device.
  static constexpr size_t kMostLists = 1024;

  void Forget(const PickleValue& value, bool top) {
    if (value.kind() < Kind::kList) return;
    PickleNode& node = value.node();
    if (node.kept) return;
    const bool shared = !top && value.is_dict() && node.depth == 0 &&
                        value.Find(limits_.shared_dict) != nullptr;
    if (shared ||
        (!top && node.memo == PickleNode::kNotInMemo && node.depth == 0)) {
      return;
    }
    Unmemo(node);
    for (size_t i = 0; i < node.items.size(); ++i) {
      const PickleValue& item = node.items[i];
      const std::string_view key = value.is_dict() && i % 2 == 1
                                       ? node.items[i - 1].text()
                                       : std::string_view();
      if (item.is_list() && key == limits_.shared_list && Keep(item)) continue;
      Forget(item, /*top=*/false);
      if (item.is_text() && key == limits_.own_text) Unmemo(item.node());
    }
  }

  // Keeps one list in the memo for all lists with the same items. Returns false
  // if the list is not in the memo, or if kept lists already take half of the
  // limit.
  bool Keep(const PickleValue& list) {
    PickleNode& node = list.node();
    if (node.kept) return true;
    const auto place = memo_.find(node.memo);
    if (node.memo == PickleNode::kNotInMemo || place == memo_.end() ||
        node.items.empty() ||
        Held() > static_cast<int64_t>(limits_.held_bytes / 2)) {
      return false;
    }
    std::string items;
    for (const PickleValue& item : node.items) {
      // Other dicts are forgotten together with their list.
      if (!item.is_dict() || item.node().depth > 0 ||
          item.Find(limits_.shared_dict) == nullptr) {
        return false;
      }
      const PickleNode* address = &item.node();
      items.append(reinterpret_cast<const char*>(&address), sizeof address);
    }
    const auto [one, fresh] = kept_.try_emplace(std::move(items), list);
    if (fresh) {
      node.kept = true;
      node.Charge(static_cast<int64_t>(one->first.size()) + kPlaceBytes);
    } else {
      ++kept_places_;
      place->second = one->second;
    }
    return true;
  }

  void Unmemo(PickleNode& node) {
    if (node.memo == PickleNode::kNotInMemo) return;
    const auto found = memo_.find(node.memo);
    node.memo = PickleNode::kNotInMemo;
    if (found != memo_.end() && found->second.is_node() &&
        &found->second.node() == &node) {
      memo_.erase(found);
    }
  }

  Status SetItems(size_t dict_at, size_t first) {
    if (dict_at >= stack_.size() || !stack_[dict_at].is_dict()) {
      return Wrong("an entry is added to something that is not a dict");
    }
    if ((stack_.size() - first) % 2 != 0) {
      return Wrong("a dict gets a key without a value");
    }
    const PickleValue dict = stack_[dict_at];
    for (size_t i = first; i < stack_.size(); ++i) {
      RETURN_IF_ERROR(Put(dict.node(), std::move(stack_[i])));
    }
    return OkStatus();
  }

  // Replaces everything from `drop_to` on by a new container of the values from
  // `first` on.
  Status Gather(Kind kind, size_t first, size_t drop_to) {
    PickleValue made = PickleValue::Node(kind);
    for (size_t i = first; i < stack_.size(); ++i) {
      RETURN_IF_ERROR(Put(made.node(), std::move(stack_[i])));
    }
    stack_.resize(drop_to);
    stack_.push_back(std::move(made));
    return OkStatus();
  }

  Status TupleOf(size_t count) {
    if (stack_.size() < count)
      return Wrong("a tuple of values that are not there");
    const size_t first = stack_.size() - count;
    return Gather(Kind::kTuple, first, first);
  }

  // ---- The memo ------------------------------------------------------------

  Status Memoize(uint64_t index) {
    if (stack_.empty() || stack_.back().kind() == Kind::kMark) {
      return Wrong("an empty stack is memoized");
    }
    if (index >= PickleNode::kNotInMemo) return Wrong("a memo of that size");
    next_memo_ = std::max(next_memo_, index + 1);
    PickleValue& value = stack_.back();
    if (!value.is_node()) {
      // Python never memoizes numbers, only values that can be shared.
      return Wrong("a number is memoized, which Python does not do");
    }
    if (value.node().memo != PickleNode::kNotInMemo) {
      return Wrong("a value is remembered twice");
    }
    const auto [place, fresh] =
        memo_.try_emplace(static_cast<uint32_t>(index), value);
    if (!fresh) return Wrong(StrCat("memo ", index, " is used twice"));
    value.node().memo = static_cast<uint32_t>(index);
    return OkStatus();
  }

  Status Recall(uint64_t index) {
    const auto found = memo_.find(static_cast<uint32_t>(index));
    if (index < PickleNode::kNotInMemo && found != memo_.end()) {
      stack_.push_back(found->second);
      return OkStatus();
    }
    if (index >= next_memo_) {
      return Wrong(StrCat("memo ", index, " was never written"));
    }
    stack_.emplace_back(Kind::kGone);
    return OkStatus();
  }

  // ---- One instruction -----------------------------------------------------

  Status Step(int opcode);
  Status Refuse(int opcode) const;

  ByteSource& source_;
  const TakePickleItem& take_;
  const PickleLimits limits_;
  uint64_t at_ = 0;  // position of the instruction
  int64_t held_before_ = 0;
  std::vector<PickleValue> stack_;
  std::unordered_map<uint32_t, PickleValue> memo_;
  uint64_t next_memo_ = 0;
  // Kept lists, by the addresses of their items.
  std::unordered_map<std::string, PickleValue> kept_;
  int64_t kept_places_ = 0;
};

}  // namespace reprise::formats
