// SPDX-License-Identifier: Apache-2.0
//
// Every key of `reprise.graph/1`: where it may occur, what it holds, and
// whether it is required. Keys have the names of the fields in graph.proto, so
// the reader sets fields by name.
#pragma once

#include <string_view>

namespace reprise::formats::graph_json {

enum class Place {
  kRoot,
  kStaticParts,
  kStaticPart,
  kStorages,
  kStorage,
  kOps,
  kOp,
  kTensors,
  kTensor
};

// The type of a key's value. Lists of ids and of sizes are places without keys.
enum class Type {
  kText,
  kBytes,
  kId,
  kFlag,
  kPhase,
  kKind,
  kCategory,
  kIds,
  kSizes,
  kStaticList,
  kStorageList,
  kOpList,
  kTensorList
};

struct Key {
  Place place;
  std::string_view name;
  Type type;
  bool needed;
};

inline constexpr Key kKeys[] = {
    {Place::kRoot, "name", Type::kText, false},
    {Place::kRoot, "source", Type::kText, false},
    {Place::kRoot, "note", Type::kText, false},
    {Place::kRoot, "flavour", Type::kText, false},
    {Place::kRoot, "structure", Type::kText, false},
    {Place::kRoot, "static_bytes", Type::kBytes, true},
    {Place::kRoot, "static_parts", Type::kStaticList, false},
    {Place::kRoot, "measured_peak_bytes", Type::kBytes, false},
    {Place::kRoot, "measured_step_ns", Type::kBytes, false},
    {Place::kRoot, "required", Type::kIds, true},
    {Place::kRoot, "storages", Type::kStorageList, true},
    {Place::kRoot, "ops", Type::kOpList, true},
    {Place::kRoot, "tensors", Type::kTensorList, false},
    {Place::kStaticPart, "category", Type::kCategory, true},
    {Place::kStaticPart, "bytes", Type::kBytes, true},
    {Place::kStorage, "id", Type::kId, true},
    {Place::kStorage, "bytes", Type::kBytes, true},
    {Place::kStorage, "name", Type::kText, false},
    {Place::kStorage, "category", Type::kCategory, false},
    {Place::kStorage, "saved_for_backward", Type::kFlag, false},
    {Place::kStorage, "release_op", Type::kId, false},
    {Place::kStorage, "pinned", Type::kFlag, false},
    {Place::kOp, "id", Type::kId, true},
    {Place::kOp, "name", Type::kText, false},
    {Place::kOp, "module", Type::kText, false},
    {Place::kOp, "source", Type::kText, false},
    {Place::kOp, "phase", Type::kPhase, true},
    {Place::kOp, "kind", Type::kKind, true},
    {Place::kOp, "time_ns", Type::kBytes, true},
    {Place::kOp, "workspace_bytes", Type::kBytes, true},
    {Place::kOp, "again_ns", Type::kBytes, false},
    {Place::kOp, "state_bytes", Type::kBytes, false},
    {Place::kOp, "replay_point", Type::kFlag, false},
    {Place::kOp, "replay_windows", Type::kIds, false},
    {Place::kOp, "call", Type::kId, false},
    {Place::kOp, "ordinal", Type::kId, false},
    {Place::kOp, "reads", Type::kIds, true},
    {Place::kOp, "writes", Type::kIds, true},
    {Place::kOp, "mutates", Type::kIds, true},
    {Place::kTensor, "storage", Type::kId, true},
    {Place::kTensor, "version", Type::kId, true},
    {Place::kTensor, "name", Type::kText, false},
    {Place::kTensor, "dtype", Type::kText, false},
    {Place::kTensor, "saved_for_backward", Type::kFlag, false},
    {Place::kTensor, "shape", Type::kSizes, false},
};

// What each Type expects, for error messages. Indexed by Type.
inline constexpr const char* kWanted[] = {
    "a string",          "an integer",        "an integer",
    "true or false",     "a phase",           "a kind",
    "a category",        "a list of ids",     "a list of sizes",
    "a list of objects", "a list of objects", "a list of objects",
    "a list of objects"};

}  // namespace reprise::formats::graph_json
