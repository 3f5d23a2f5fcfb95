// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <limits>
#include <nlohmann/json.hpp>
#include <string_view>

#include "base/str_cat.h"
#include "formats/convert/json_fields.h"
#include "formats/convert/plan_json.h"

namespace reprise::formats {
namespace {

using Json = nlohmann::json;

constexpr std::array<std::string_view, 6> kMethods = {
    "none", "working-set", "chain", "window", "windows", "nested"};
// Of the executor that the proof is for, where they are true.
constexpr const char* kFlags[] = {"recompute_in_backward_only", "seeded_ok",
                                  "collective_ok", "duplicate_outputs",
                                  "program_frees"};

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

// Reads a list of pairs; an odd one at the end is left out.
template <typename Add>
void ReadPairs(JsonFields& in, const char* key, int64_t most_second, Add add) {
  const Json* list = in.List(false, key);
  for (size_t i = 0; list != nullptr && i + 1 < list->size(); i += 2) {
    const auto first = JsonFields::Integer((*list)[i], JsonFields::kMaxId);
    const auto second = JsonFields::Integer((*list)[i + 1], most_second);
    if (!first || !second) return in.Fail(StrCat(key, ": wrong"));
    add(static_cast<uint32_t>(*first), *second);
  }
}

Status ReadNode(const Json& entry, v1::ProofNode& node) {
  if (!entry.is_object()) {
    const auto branch = JsonFields::Integer(entry, JsonFields::kMaxId - 1);
    if (!branch) return InvalidArgument("tree: wrong");
    node.set_branch(static_cast<uint32_t>(*branch) + 1);
    return OkStatus();
  }
  JsonFields in(entry, node);
  in.Read(false, {"shift", "byte_shift", "narrows", "impossible", "price"});
  ReadPairs(in, "rows", std::numeric_limits<int64_t>::max(),
            [&](uint32_t row, int64_t multiplier) {
              node.add_rows(row);
              node.add_multipliers(multiplier);
            });
  return in.status();
}

Status ReadCertificate(const Json& json, v1::Certificate& proof) {
  JsonFields in(json, proof);
  in.Word(true, "method", kMethods);
  in.Read(false,
          {"budget_bytes", "reserve_bytes", "added_ns", "least_bytes", "at"});
  proof.set_refuses(json.contains("least_bytes"));
  proof.set_inside(json.contains("inside"));
  ReadPairs(in, "inside", JsonFields::kMaxId,
            [&](uint32_t segment, int64_t op) {
              proof.add_inside_segments(segment);
              proof.add_inside_ops(static_cast<uint32_t>(op));
            });
  const Json* tree = in.List(false, "tree");
  for (size_t i = 0; tree != nullptr && i < tree->size(); ++i) {
    RETURN_IF_ERROR(ReadNode((*tree)[i], *proof.add_tree()));
  }
  if (json.contains("executor")) {
    in.Inside(json["executor"], "executor", proof, {},
              {"max_runs", "ns_per_op", kFlags[0], kFlags[1], kFlags[2],
               kFlags[3], kFlags[4]});
  }
  return in.status();
}

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
  text += StrCat(", \"at\": ", JsonOf(proof, "at"));
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
  for (const char* flag : kFlags) {
    if (JsonOf(proof, flag) == "true") text += StrCat(", \"", flag, "\": true");
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

StatusOr<v1::Certificate> ReadProof(const Json& json) {
  if (!json.is_object()) return InvalidArgument("proof: not an object");
  v1::Certificate proof;
  const Status read = ReadCertificate(json, proof);
  if (!read.ok()) return InvalidArgument(StrCat("proof.", read.message()));
  return proof;
}

}  // namespace reprise::formats
