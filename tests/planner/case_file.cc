// SPDX-License-Identifier: Apache-2.0
#include "tests/planner/case_file.h"

#include <fstream>
#include <set>
#include <sstream>

#include "base/str_cat.h"
#include "tests/planner/random_graph.h"

namespace reprise::planner {
namespace {

// Reads the words of one line from left to right.
class Words {
 public:
  explicit Words(const std::string& line) : stream_(line) { Advance(); }
  bool done() const { return word_.empty(); }
  const std::string& peek() const { return word_; }
  std::string Take() {
    std::string word = word_;
    Advance();
    return word;
  }
  int64_t TakeNumber() {
    const std::string word = Take();
    if (word.empty() ||
        word.find_first_not_of("0123456789") != std::string::npos) {
      bad_ = true;
      return 0;
    }
    return std::stoll(word);
  }
  bool bad() const { return bad_; }

 private:
  void Advance() {
    if (!(stream_ >> word_)) word_.clear();
  }
  std::istringstream stream_;
  std::string word_;
  bool bad_ = false;
};

const std::set<std::string> kOpWords = {
    "ns",   "forward", "backward",   "optimizer", "once",  "seeded",
    "view", "reads",   "collective", "mutates",   "makes", "workspace"};

class Reader {
 public:
  StatusOr<PlanCase> Read(const std::string& path) {
    std::ifstream file(path);
    if (!file) return NotFound(path + ": cannot be opened");
    std::string line;
    for (int number = 1; std::getline(file, line); ++number) {
      line = line.substr(0, line.find('#'));
      Words words(line);
      if (words.done()) continue;
      if (!ReadLine(words) || words.bad() || !words.done()) {
        return InvalidArgument(StrCat(path, ":", number, ": cannot be read"));
      }
    }
    return case_;
  }

 private:
  bool ReadLine(Words& words) {
    const std::string first = words.Take();
    if (first == "executor") {
      case_.request.capabilities = TapeCapabilities();
      case_.request.capabilities.ns_per_op = 0;
      return words.Take() == "tape";
    }
    if (first == "static" || first == "budget") {
      (first == "static" ? case_.graph.static_bytes
                         : case_.request.budget_bytes) = words.TakeNumber();
      return words.Take() == "bytes";
    }
    if (first == "op") return ReadOp(words);
    if (first == "expect") return ReadExpect(words);
    if (first == "required" || first == "pinned") {
      while (!words.done()) {
        const auto storage = case_.storages.find(words.Take());
        if (storage == case_.storages.end()) return false;
        if (first == "required") {
          case_.graph.required.push_back(storage->second);
        } else {
          case_.graph.storages[storage->second].pinned = true;
        }
      }
      return true;
    }
    if (first == "release") {
      const auto storage = case_.storages.find(words.Take());
      if (storage == case_.storages.end() || words.Take() != "after") {
        return false;
      }
      case_.graph.storages[storage->second].release_op = ops_[words.Take()];
      return true;
    }
    return false;
  }

  bool ReadNames(Words& words, std::vector<StorageId>& ids) {
    while (!words.done() && kOpWords.count(words.peek()) == 0) {
      const auto storage = case_.storages.find(words.Take());
      if (storage == case_.storages.end()) return false;
      ids.push_back(storage->second);
    }
    return true;
  }

  bool ReadOp(Words& words) {
    Op op;
    op.name = words.Take();
    op.time_ns = words.TakeNumber();
    if (words.Take() != "ns") return false;
    while (!words.done()) {
      const std::string word = words.Take();
      if (word == "forward") {
        op.phase = Phase::kForward;
      } else if (word == "backward") {
        op.phase = Phase::kBackward;
      } else if (word == "optimizer") {
        op.phase = Phase::kOptimizer;
      } else if (word == "once") {
        op.kind = OpKind::kOnce;
      } else if (word == "seeded") {
        op.kind = OpKind::kSeeded;
      } else if (word == "collective") {
        op.kind = OpKind::kCollective;
      } else if (word == "view") {
        op.kind = OpKind::kView;
      } else if (word == "workspace") {
        op.workspace_bytes = words.TakeNumber();
      } else if (word == "reads") {
        if (!ReadNames(words, op.reads)) return false;
      } else if (word == "mutates") {
        if (!ReadNames(words, op.mutates)) return false;
      } else if (word == "makes") {
        while (!words.done() && kOpWords.count(words.peek()) == 0) {
          const std::string name = words.Take();
          const StorageId id = case_.graph.storage_count();
          if (!case_.storages.emplace(name, id).second) return false;
          Storage storage;
          storage.bytes = words.TakeNumber();
          storage.name = name;
          case_.graph.storages.push_back(storage);
          op.writes.push_back(id);
        }
      } else {
        return false;
      }
    }
    ops_[op.name] = case_.graph.op_count();
    case_.graph.ops.push_back(op);
    return true;
  }

  bool ReadExpect(Words& words) {
    while (!words.done()) {
      const std::string word = words.Take();
      if (word == "recompute") {
        while (!words.done() && case_.storages.count(words.peek()) != 0) {
          case_.recompute.push_back(words.Take());
        }
      } else if (word == "peak" || word == "needs") {
        case_.peak_bytes = words.TakeNumber();
        if (words.Take() != "bytes") return false;
      } else if (word == "step" || word == "bound") {
        (word == "step" ? case_.step_ns : case_.bound_ns) = words.TakeNumber();
        if (words.Take() != "ns") return false;
      } else if (word == "impossible") {
        case_.impossible = true;
      } else if (word == "at") {
        case_.at = words.Take();
      } else {
        return false;
      }
    }
    return true;
  }

  PlanCase case_;
  std::map<std::string, OpId> ops_;
};

}  // namespace

StatusOr<PlanCase> ReadCase(const std::string& path) {
  return Reader().Read(path);
}

}  // namespace reprise::planner
