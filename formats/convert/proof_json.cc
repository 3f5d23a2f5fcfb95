// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <limits>
#include <nlohmann/json.hpp>
#include <string_view>

#include "base/str_cat.h"
#include "formats/convert/plan_json.h"

namespace reprise::formats {
namespace {

using Json = nlohmann::json;

constexpr std::array<std::string_view, 6> kMethods = {
    "none", "working-set", "chain", "window", "windows", "nested"};
constexpr int64_t kMostId = std::numeric_limits<int32_t>::max();
constexpr int64_t kMost = std::numeric_limits<int64_t>::max();

// A flag of the executor with its key.
struct Flag {
  const char* key;
  bool (v1::Certificate::*get)() const;
  void (v1::Certificate::*set)(bool);
};
constexpr std::array<Flag, 5> kFlags = {{
    {"recompute_in_backward_only", &v1::Certificate::recompute_in_backward_only,
     &v1::Certificate::set_recompute_in_backward_only},
    {"seeded_ok", &v1::Certificate::seeded_ok, &v1::Certificate::set_seeded_ok},
    {"collective_ok", &v1::Certificate::collective_ok,
     &v1::Certificate::set_collective_ok},
    {"duplicate_outputs", &v1::Certificate::duplicate_outputs,
     &v1::Certificate::set_duplicate_outputs},
    {"program_frees", &v1::Certificate::program_frees,
     &v1::Certificate::set_program_frees},
}};

void Append(std::string& text, const v1::ProofNode& node) {
  if (node.branch() > 0) {
    text += std::to_string(node.branch() - 1);
    return;
  }
  text += StrCat("{\"shift\": ", node.shift());
  if (node.byte_shift() > 0)
    text += StrCat(", \"byte_shift\": ", node.byte_shift());
  if (node.narrows()) text += ", \"narrows\": true";
  if (node.impossible()) text += ", \"impossible\": true";
  if (node.price() > 0) text += StrCat(", \"price\": ", node.price());
  if (node.rows_size() > 0) {
    text += ", \"rows\": [";
    for (int i = 0; i < node.rows_size(); ++i) {
      text += StrCat(i == 0 ? "" : ",", node.rows(i), ",", node.multipliers(i));
    }
    text += "]";
  }
  text += "}";
}

class ProofReader {
 public:
  StatusOr<v1::Certificate> Read(const Json& proof) {
    if (!proof.is_object()) return InvalidArgument("proof: not an object");
    const std::string method =
        proof.contains("method") && proof["method"].is_string()
            ? proof["method"].get<std::string>()
            : "";
    const auto found = std::find(kMethods.begin(), kMethods.end(), method);
    if (found == kMethods.end())
      return InvalidArgument("proof.method: unknown");
    proof_.set_method(static_cast<v1::ProofMethod>(found - kMethods.begin()));
    proof_.set_budget_bytes(Number(proof, "budget_bytes", kMost));
    proof_.set_reserve_bytes(Number(proof, "reserve_bytes", kMost));
    proof_.set_refuses(proof.contains("least_bytes"));
    proof_.set_added_ns(Number(proof, "added_ns", kMost));
    proof_.set_least_bytes(Number(proof, "least_bytes", kMost));
    for (const int64_t at : Numbers(proof, "at", kMostId)) {
      proof_.add_at(static_cast<uint32_t>(at));
    }
    proof_.set_inside(proof.contains("inside"));
    const std::vector<int64_t> inside = Numbers(proof, "inside", kMostId);
    for (size_t i = 0; i + 1 < inside.size(); i += 2) {
      proof_.add_inside_segments(static_cast<uint32_t>(inside[i]));
      proof_.add_inside_ops(static_cast<uint32_t>(inside[i + 1]));
    }
    ReadTree(proof);
    ReadExecutor(proof);
    RETURN_IF_ERROR(status_);
    return proof_;
  }

 private:
  void Fail(const std::string& key) {
    if (status_.ok())
      status_ = InvalidArgument(StrCat("proof.", key, ": wrong"));
  }

  // Returns 0 if the key is absent.
  int64_t Number(const Json& in, const char* key, int64_t most) {
    if (!in.contains(key)) return 0;
    return Value(in[key], key, most);
  }

  int64_t Value(const Json& value, const char* key, int64_t most) {
    const bool good = value.is_number_integer() &&
                      !(value.is_number_unsigned() &&
                        value.get<uint64_t>() > static_cast<uint64_t>(most)) &&
                      value.get<int64_t>() >= 0;
    if (!good) Fail(key);
    return good ? value.get<int64_t>() : 0;
  }

  std::vector<int64_t> Numbers(const Json& in, const char* key, int64_t most) {
    std::vector<int64_t> numbers;
    if (!in.contains(key)) return numbers;
    if (!in[key].is_array()) Fail(key);
    for (const Json& value : in[key]) {
      numbers.push_back(Value(value, key, most));
    }
    return numbers;
  }

  void ReadTree(const Json& proof) {
    if (!proof.contains("tree")) return;
    if (!proof["tree"].is_array()) return Fail("tree");
    for (const Json& entry : proof["tree"]) {
      v1::ProofNode& node = *proof_.add_tree();
      if (!entry.is_object()) {
        node.set_branch(
            static_cast<uint32_t>(Value(entry, "tree", kMostId - 1)) + 1);
        continue;
      }
      node.set_shift(static_cast<uint32_t>(Number(entry, "shift", kMostId)));
      node.set_byte_shift(
          static_cast<uint32_t>(Number(entry, "byte_shift", kMostId)));
      node.set_narrows(entry.contains("narrows") && entry["narrows"] == true);
      node.set_impossible(entry.contains("impossible") &&
                          entry["impossible"] == true);
      node.set_price(Number(entry, "price", kMost));
      const std::vector<int64_t> rows = Numbers(entry, "rows", kMost);
      for (size_t i = 0; i + 1 < rows.size(); i += 2) {
        if (rows[i] > kMostId) Fail("tree.rows");
        node.add_rows(static_cast<uint32_t>(rows[i]));
        node.add_multipliers(rows[i + 1]);
      }
    }
  }

  void ReadExecutor(const Json& proof) {
    if (!proof.contains("executor")) return;
    const Json& executor = proof["executor"];
    if (!executor.is_object()) return Fail("executor");
    proof_.set_max_runs(
        static_cast<int32_t>(Number(executor, "max_runs", kMostId)));
    proof_.set_ns_per_op(Number(executor, "ns_per_op", kMost));
    for (const Flag& flag : kFlags) {
      (proof_.*flag.set)(executor.contains(flag.key) &&
                         executor[flag.key] == true);
    }
  }

  Status status_;
  v1::Certificate proof_;
};

}  // namespace

std::string WriteProof(const v1::Certificate& proof) {
  std::string text =
      StrCat("{\"method\": \"",
             kMethods[std::clamp<int>(proof.method(), 0, kMethods.size() - 1)],
             "\", \"budget_bytes\": ", proof.budget_bytes());
  if (proof.reserve_bytes() > 0) {
    text += StrCat(", \"reserve_bytes\": ", proof.reserve_bytes());
  }
  text += proof.refuses() ? StrCat(", \"least_bytes\": ", proof.least_bytes())
                          : StrCat(", \"added_ns\": ", proof.added_ns());
  text += ", \"at\": [";
  for (int i = 0; i < proof.at_size(); ++i) {
    text += StrCat(i == 0 ? "" : ", ", proof.at(i));
  }
  text += "]";
  if (proof.inside()) {
    text += ",\n    \"inside\": [";
    for (int i = 0; i < proof.inside_segments_size(); ++i) {
      text += StrCat(i == 0 ? "" : ",", proof.inside_segments(i), ",",
                     proof.inside_ops(i));
    }
    text += "]";
  }
  text += StrCat(",\n    \"executor\": {\"max_runs\": ", proof.max_runs(),
                 ", \"ns_per_op\": ", proof.ns_per_op());
  for (const Flag& flag : kFlags) {
    if ((proof.*flag.get)()) text += StrCat(", \"", flag.key, "\": true");
  }
  text += "}";
  if (proof.tree_size() > 0) {
    text += ",\n    \"tree\": [";
    for (int i = 0; i < proof.tree_size(); ++i) {
      if (i > 0) text += proof.tree(i).branch() > 0 ? ", " : ",\n      ";
      Append(text, proof.tree(i));
    }
    text += "]";
  }
  return text + "}";
}

StatusOr<v1::Certificate> ReadProof(const Json& proof) {
  return ProofReader().Read(proof);
}

}  // namespace reprise::formats
