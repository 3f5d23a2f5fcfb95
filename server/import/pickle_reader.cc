// SPDX-License-Identifier: Apache-2.0
#include "server/import/pickle_reader.h"

#include <bit>
#include <unordered_map>

#include "base/str_cat.h"

namespace reprise::server {

namespace {

using Kind = PickleValue::Kind;

// Instructions that are known and refused: they import, call, build or change
// what plain data has no need of.
struct Refused {
  uint8_t opcode;
  const char* name;
};
constexpr Refused kRefused[] = {
    {'c', "GLOBAL"},
    {0x93, "STACK_GLOBAL"},
    {'R', "REDUCE"},
    {'b', "BUILD"},
    {'i', "INST"},
    {'o', "OBJ"},
    {0x81, "NEWOBJ"},
    {0x92, "NEWOBJ_EX"},
    {0x82, "EXT1"},
    {0x83, "EXT2"},
    {0x84, "EXT4"},
    {'P', "PERSID"},
    {'Q', "BINPERSID"},
    {0x97, "NEXT_BUFFER"},
    {0x98, "READONLY_BUFFER"},
    {0x96, "BYTEARRAY8"},
    {0x8f, "EMPTY_SET"},
    {0x90, "ADDITEMS"},
    {0x91, "FROZENSET"},
    {'I', "INT"},
    {'L', "LONG"},
    {'F', "FLOAT"},
    {'S', "STRING"},
    {'T', "BINSTRING"},
    {'U', "SHORT_BINSTRING"},
    {'V', "UNICODE"},
    {'g', "GET"},
    {'p', "PUT"},
    {'2', "DUP"},
    {0x8b, "LONG4"},
};

bool IsImport(std::string_view name) {
  return name == "GLOBAL" || name == "STACK_GLOBAL" || name == "REDUCE" ||
         name == "BUILD" || name == "INST" || name == "OBJ" ||
         name == "NEWOBJ" || name == "NEWOBJ_EX" || name.starts_with("EXT") ||
         name.ends_with("PERSID");
}

class Reader {
 public:
  Reader(ByteSource& source, const TakePickleItem& take,
         const PickleLimits& limits)
      : source_(source), take_(take), limits_(limits) {}

  StatusOr<PickleValue> Run() {
    held_before_ = PickleNode::held_bytes;
    while (true) {
      at_ = source_.position();
      const int opcode = source_.Next();
      if (opcode < 0) return Ended();
      if (at_ == 0 && opcode != 0x80) {
        return Wrong("is no pickle of protocol 2 to 5");
      }
      if (opcode == '.') break;
      RETURN_IF_ERROR(Step(opcode));
      if (stack_.size() > kMostStack) {
        return TooMuch("more than 4 million values wait to be put somewhere");
      }
      const int64_t held = PickleNode::held_bytes - held_before_;
      if (held > static_cast<int64_t>(limits_.held_bytes)) {
        return TooMuch(StrCat("needs more than ", limits_.held_bytes >> 20,
                              " MiB at once"));
      }
    }
    if (stack_.size() != 1 || stack_[0].kind() == Kind::kMark) {
      return Wrong("the pickle ends with values that belong nowhere");
    }
    return std::move(stack_[0]);
  }

 private:
  static constexpr size_t kMostStack = size_t{1} << 22;

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

  // LONG1: an integer of any length, least byte first, of two's complement.
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

  Status ReadFloat() {
    uint64_t raw = 0;
    RETURN_IF_ERROR(ReadUnsigned(8, raw));
    uint64_t bits = 0;  // it is written highest byte first
    for (int i = 0; i < 8; ++i) bits = bits << 8 | ((raw >> (8 * i)) & 0xff);
    stack_.push_back(PickleValue::Float(std::bit_cast<double>(bits)));
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
    // In pieces: a length is believed only as far as there are bytes.
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

  // Position of the topmost mark.
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
      return Wrong("an item is added to what is no list");
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

  // Where a list that is being filled belongs:
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
  // Lists of a list that are looked through: devices of a machine.
  static constexpr size_t kMostLists = 1024;

  void Forget(const PickleValue& value, bool top) {
    if (value.kind() < Kind::kList) return;
    PickleNode& node = value.node();
    const bool shared = !top && value.is_dict() && node.depth == 0 &&
                        value.Find(limits_.shared_dict) != nullptr;
    if (shared ||
        (!top && node.memo == PickleNode::kNotInMemo && node.depth == 0)) {
      return;
    }
    Unmemo(node);
    for (size_t i = 0; i < node.items.size(); ++i) {
      const PickleValue& item = node.items[i];
      Forget(item, /*top=*/false);
      if (value.is_dict() && i % 2 == 1 && item.is_text() &&
          node.items[i - 1].text() == limits_.own_text) {
        Unmemo(item.node());
      }
    }
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
      return Wrong("an entry is added to what is no dict");
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

  // A new container of everything above `first`.
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
      return Wrong("there is nothing to remember");
    }
    if (index >= PickleNode::kNotInMemo) return Wrong("a memo of that size");
    next_memo_ = std::max(next_memo_, index + 1);
    PickleValue& value = stack_.back();
    if (!value.is_node()) {
      // Only what can be shared is worth a place; Python remembers no others.
      return Wrong("a number is remembered, which Python does not do");
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
  uint64_t at_ = 0;  // of the instruction
  int64_t held_before_ = 0;
  std::vector<PickleValue> stack_;
  std::unordered_map<uint32_t, PickleValue> memo_;
  uint64_t next_memo_ = 0;
};

Status Reader::Refuse(int opcode) const {
  for (const Refused& one : kRefused) {
    if (one.opcode != opcode) continue;
    if (IsImport(one.name)) {
      return Wrong(StrCat("the pickle wants to run code (", one.name,
                          "); only plain data is read"));
    }
    return Wrong(StrCat(one.name,
                        " is not used by plain data of protocol 2 "
                        "to 5"));
  }
  return Wrong(StrCat("instruction ", opcode, " is unknown"));
}

Status Reader::Step(int opcode) {
  uint64_t number = 0;
  size_t mark = 0;
  switch (opcode) {
    case 0x80:  // PROTO
      RETURN_IF_ERROR(ReadUnsigned(1, number));
      if (number < 2 || number > 5) {
        return Wrong(StrCat("pickle protocol ", number,
                            ": 2 to 5 are read; dump it again"));
      }
      return OkStatus();
    case 0x95:  // FRAME: says how much follows, which streaming has no use for
      return ReadUnsigned(8, number);
    case '(':
      stack_.emplace_back(Kind::kMark);
      return OkStatus();
    case '0':  // POP
      if (stack_.empty()) return Wrong("nothing is there to be dropped");
      stack_.pop_back();
      return OkStatus();
    case '1':  // POP_MARK
      RETURN_IF_ERROR(FindMark(mark));
      stack_.resize(mark);
      return OkStatus();
    case 'N':
      stack_.emplace_back();
      return OkStatus();
    case 0x88:
    case 0x89:
      stack_.push_back(PickleValue::Bool(opcode == 0x88));
      return OkStatus();
    case 'J':
      return ReadInt(4, /*is_signed=*/true);
    case 'K':
      return ReadInt(1, /*is_signed=*/false);
    case 'M':
      return ReadInt(2, /*is_signed=*/false);
    case 0x8a:
      return ReadLong();
    case 'G':
      return ReadFloat();
    case 0x8c:
      return ReadText(Kind::kText, 1);
    case 'X':
      return ReadText(Kind::kText, 4);
    case 0x8d:
      return ReadText(Kind::kText, 8);
    case 'C':
      return ReadText(Kind::kBytes, 1);
    case 'B':
      return ReadText(Kind::kBytes, 4);
    case 0x8e:
      return ReadText(Kind::kBytes, 8);
    case ']':
      stack_.push_back(PickleValue::Node(Kind::kList));
      return OkStatus();
    case '}':
      stack_.push_back(PickleValue::Node(Kind::kDict));
      return OkStatus();
    case ')':
      return TupleOf(0);
    case 0x85:
    case 0x86:
    case 0x87:
      return TupleOf(static_cast<size_t>(opcode - 0x84));
    case 't':
      RETURN_IF_ERROR(FindMark(mark));
      return Gather(Kind::kTuple, mark + 1, mark);
    case 'l':
      RETURN_IF_ERROR(FindMark(mark));
      return Gather(Kind::kList, mark + 1, mark);
    case 'd':
      RETURN_IF_ERROR(FindMark(mark));
      if ((stack_.size() - mark) % 2 == 0) {
        return Wrong("a dict gets a key without a value");
      }
      return Gather(Kind::kDict, mark + 1, mark);
    case 'a':
      if (stack_.size() < 2) return Wrong("an item is added to nothing");
      RETURN_IF_ERROR(Append(stack_.size() - 2, stack_.size() - 1));
      stack_.pop_back();
      return OkStatus();
    case 'e':
      RETURN_IF_ERROR(FindMark(mark));
      if (mark == 0) return Wrong("items are added to nothing");
      RETURN_IF_ERROR(Append(mark - 1, mark + 1));
      stack_.resize(mark);
      return OkStatus();
    case 's':
      if (stack_.size() < 3) return Wrong("an entry is added to nothing");
      RETURN_IF_ERROR(SetItems(stack_.size() - 3, stack_.size() - 2));
      stack_.resize(stack_.size() - 2);
      return OkStatus();
    case 'u':
      RETURN_IF_ERROR(FindMark(mark));
      if (mark == 0) return Wrong("entries are added to nothing");
      RETURN_IF_ERROR(SetItems(mark - 1, mark + 1));
      stack_.resize(mark);
      return OkStatus();
    case 0x94:
      return Memoize(next_memo_);
    case 'q':
      RETURN_IF_ERROR(ReadUnsigned(1, number));
      return Memoize(number);
    case 'r':
      RETURN_IF_ERROR(ReadUnsigned(4, number));
      return Memoize(number);
    case 'h':
      RETURN_IF_ERROR(ReadUnsigned(1, number));
      return Recall(number);
    case 'j':
      RETURN_IF_ERROR(ReadUnsigned(4, number));
      return Recall(number);
    default:
      return Refuse(opcode);
  }
}

}  // namespace

StatusOr<PickleValue> ReadPickle(ByteSource& source, const TakePickleItem& take,
                                 const PickleLimits& limits) {
  return Reader(source, take, limits).Run();
}

}  // namespace reprise::server
