// SPDX-License-Identifier: Apache-2.0
#include "formats/import/pickle_reader.h"

#include "base/str_cat.h"
#include "formats/import/pickle_machine.h"

namespace reprise::formats {

namespace {

// Known instructions that are rejected: the first ones import, call, construct
// or change objects, the others are not of plain data either.
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
constexpr size_t kRunningCode = 13;  // of the first ones

}  // namespace

Status PickleMachine::Refuse(int opcode) const {
  for (size_t i = 0; i < std::size(kRefused); ++i) {
    const Refused& one = kRefused[i];
    if (one.opcode != opcode) continue;
    return Wrong(i < kRunningCode
                     ? StrCat("the pickle wants to run code (", one.name,
                              "); only plain data is read")
                     : StrCat(one.name,
                              " is not used by plain data of protocol "
                              "2 to 5"));
  }
  return Wrong(StrCat("instruction ", opcode, " is unknown"));
}

Status PickleMachine::Step(int opcode) {
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
    case 0x95:  // FRAME: length of what follows, of no use here
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
      RETURN_IF_ERROR(ReadUnsigned(8, number));
      stack_.emplace_back(Kind::kFloat);
      return OkStatus();
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

StatusOr<PickleValue> ReadPickle(ByteSource& source, const TakePickleItem& take,
                                 const PickleLimits& limits) {
  return PickleMachine(source, take, limits).Run();
}

}  // namespace reprise::formats
