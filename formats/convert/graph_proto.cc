// SPDX-License-Identifier: Apache-2.0
#include "formats/convert/graph_proto.h"

#include <algorithm>
#include <iterator>
#include <string>
#include <vector>

#include "base/str_cat.h"

namespace reprise::formats {
namespace {

using Ids = google::protobuf::RepeatedField<uint32_t>;

// By the number of the planner's.
constexpr v1::Phase kPhases[] = {v1::PHASE_FORWARD, v1::PHASE_BACKWARD,
                                 v1::PHASE_OPTIMIZER};
constexpr v1::OpKind kKinds[] = {v1::OP_KIND_PURE, v1::OP_KIND_SEEDED,
                                 v1::OP_KIND_ONCE, v1::OP_KIND_COLLECTIVE,
                                 v1::OP_KIND_VIEW};

Status CheckCount(std::string_view what, int count) {
  if (count <= kMaxGraphItems) return OkStatus();
  return InvalidArgument(
      StrCat(what, ": at most ", kMaxGraphItems, " are accepted, got ", count));
}

StatusOr<std::vector<planner::StorageId>> CopyIds(const Ids& ids, int storages,
                                                  const std::string& list) {
  std::vector<planner::StorageId> out;
  out.reserve(ids.size());
  for (int i = 0; i < ids.size(); ++i) {
    if (ids[i] >= static_cast<uint32_t>(storages)) {
      return InvalidArgument(StrCat(list, "[", i, "]: there is no storage ",
                                    ids[i], ", the graph has ", storages));
    }
    out.push_back(static_cast<planner::StorageId>(ids[i]));
  }
  return out;
}

planner::Category CategoryOf(v1::Category category) {
  return category == v1::CATEGORY_UNSPECIFIED
             ? planner::Category::kUnknown
             : static_cast<planner::Category>(category);
}

StatusOr<planner::Storage> ConvertStorage(const v1::Storage& from, int id,
                                          int op_count) {
  const auto field = [id](const char* name) {
    return StrCat("storages[", id, "].", name);
  };
  if (from.id() != static_cast<uint32_t>(id)) {
    return InvalidArgument(StrCat(
        field("id"), ": ids count from 0 without holes, got ", from.id()));
  }
  if (!v1::Category_IsValid(from.category())) {
    return InvalidArgument(StrCat(field("category"), ": unknown value ",
                                  static_cast<int>(from.category())));
  }
  planner::Storage to;
  to.bytes = from.bytes();
  to.name = from.name();
  to.category = CategoryOf(from.category());
  to.saved_for_backward = from.saved_for_backward();
  to.pinned = from.pinned();
  to.stays = from.stays();
  if (from.has_release_op()) {
    if (from.release_op() >= static_cast<uint32_t>(op_count)) {
      return InvalidArgument(StrCat(field("release_op"), ": there is no op ",
                                    from.release_op(), ", the graph has ",
                                    op_count));
    }
    to.release_op = static_cast<planner::OpId>(from.release_op());
  }
  return to;
}

StatusOr<planner::Op> ConvertOp(const v1::Op& from, int id, int storages) {
  const auto field = [id](const char* name) {
    return StrCat("ops[", id, "].", name);
  };
  if (from.id() != static_cast<uint32_t>(id)) {
    return InvalidArgument(StrCat(
        field("id"), ": ids count from 0 without holes, got ", from.id()));
  }
  planner::Op to;
  const auto* phase = std::find(kPhases, std::end(kPhases), from.phase());
  if (phase == std::end(kPhases)) {
    return InvalidArgument(
        StrCat(field("phase"), ": must be forward, backward or optimizer, got ",
               static_cast<int>(from.phase())));
  }
  to.phase = static_cast<planner::Phase>(phase - kPhases);
  const auto* kind = std::find(kKinds, std::end(kKinds), from.kind());
  if (kind == std::end(kKinds)) {
    return InvalidArgument(StrCat(
        field("kind"), ": must be pure, seeded, once, collective or view, got ",
        static_cast<int>(from.kind())));
  }
  to.kind = static_cast<planner::OpKind>(kind - kKinds);
  to.time_ns = from.time_ns();
  to.workspace_bytes = from.workspace_bytes();
  to.again_ns = from.again_ns();
  to.state_bytes = from.state_bytes();
  to.replay_point = !from.has_replay_point() || from.replay_point();
  const auto& windows = from.replay_windows();
  if (windows.size() % 2 != 0) {
    return InvalidArgument(
        StrCat(field("replay_windows"),
               ": must be pairs of a first and a last op, got ", windows.size(),
               " numbers"));
  }
  for (int i = 0; i < windows.size(); i += 2) {
    if (std::max(windows[i], windows[i + 1]) > planner::kMaxOps) {
      return InvalidArgument(StrCat(field("replay_windows"),
                                    ": there is no op ",
                                    std::max(windows[i], windows[i + 1])));
    }
    to.replay_windows.push_back(
        {.first = static_cast<planner::OpId>(windows[i]),
         .last = static_cast<planner::OpId>(windows[i + 1])});
  }
  to.name = from.name();
  to.module = from.module();
  ASSIGN_OR_RETURN(to.reads, CopyIds(from.reads(), storages, field("reads")));
  ASSIGN_OR_RETURN(to.writes,
                   CopyIds(from.writes(), storages, field("writes")));
  ASSIGN_OR_RETURN(to.mutates,
                   CopyIds(from.mutates(), storages, field("mutates")));
  return to;
}

}  // namespace

StatusOr<planner::StepGraph> ToPlanner(const v1::StepGraph& proto) {
  RETURN_IF_ERROR(CheckCount("ops", proto.ops_size()));
  RETURN_IF_ERROR(CheckCount("storages", proto.storages_size()));
  if (proto.ops_size() == 0) {
    return InvalidArgument("ops: a step graph has at least one op");
  }
  if (proto.measured_peak_bytes() < 0 || proto.measured_step_ns() < 0) {
    return InvalidArgument(StrCat(proto.measured_peak_bytes() < 0
                                      ? "measured_peak_bytes"
                                      : "measured_step_ns",
                                  ": must not be negative"));
  }
  planner::StepGraph graph;
  graph.name = proto.name();
  graph.static_bytes = proto.static_bytes();
  for (int p = 0; p < proto.static_parts_size(); ++p) {
    const v1::StaticPart& part = proto.static_parts(p);
    if (!v1::Category_IsValid(part.category())) {
      return InvalidArgument(StrCat("static_parts[", p,
                                    "].category: unknown value ",
                                    static_cast<int>(part.category())));
    }
    graph.static_parts.push_back(
        {.category = CategoryOf(part.category()), .bytes = part.bytes()});
  }
  graph.storages.reserve(proto.storages_size());
  for (int s = 0; s < proto.storages_size(); ++s) {
    ASSIGN_OR_RETURN(planner::Storage storage,
                     ConvertStorage(proto.storages(s), s, proto.ops_size()));
    graph.storages.push_back(std::move(storage));
  }
  graph.ops.reserve(proto.ops_size());
  for (int o = 0; o < proto.ops_size(); ++o) {
    ASSIGN_OR_RETURN(planner::Op op,
                     ConvertOp(proto.ops(o), o, proto.storages_size()));
    graph.ops.push_back(std::move(op));
  }
  ASSIGN_OR_RETURN(graph.required, CopyIds(proto.required(),
                                           proto.storages_size(), "required"));
  for (int t = 0; t < proto.tensors_size(); ++t) {
    if (proto.tensors(t).storage() >=
        static_cast<uint32_t>(proto.storages_size())) {
      return InvalidArgument(StrCat("tensors[", t,
                                    "].storage: there is no storage ",
                                    proto.tensors(t).storage()));
    }
  }
  RETURN_IF_ERROR(planner::Validate(graph));
  return graph;
}

v1::StepGraph ToProto(const planner::StepGraph& graph) {
  v1::StepGraph proto;
  proto.set_name(graph.name);
  proto.set_static_bytes(graph.static_bytes);
  for (const planner::StaticPart& from : graph.static_parts) {
    v1::StaticPart& to = *proto.add_static_parts();
    to.set_category(static_cast<v1::Category>(from.category));
    to.set_bytes(from.bytes);
  }
  for (int s = 0; s < graph.storage_count(); ++s) {
    const planner::Storage& from = graph.storages[s];
    v1::Storage& to = *proto.add_storages();
    to.set_id(static_cast<uint32_t>(s));
    to.set_bytes(from.bytes);
    to.set_name(from.name);
    to.set_category(static_cast<v1::Category>(from.category));
    to.set_saved_for_backward(from.saved_for_backward);
    to.set_pinned(from.pinned);
    to.set_stays(from.stays);
    if (from.release_op != planner::kNoOp) {
      to.set_release_op(static_cast<uint32_t>(from.release_op));
    }
  }
  for (int o = 0; o < graph.op_count(); ++o) {
    const planner::Op& from = graph.ops[o];
    v1::Op& to = *proto.add_ops();
    to.set_id(static_cast<uint32_t>(o));
    to.set_name(from.name);
    to.set_module(from.module);
    to.set_phase(kPhases[static_cast<int>(from.phase)]);
    to.set_kind(kKinds[static_cast<int>(from.kind)]);
    to.set_time_ns(from.time_ns);
    to.set_workspace_bytes(from.workspace_bytes);
    to.set_again_ns(from.again_ns);
    to.set_state_bytes(from.state_bytes);
    if (!from.replay_point) to.set_replay_point(false);
    for (const planner::ReplayWindow& window : from.replay_windows) {
      to.add_replay_windows(static_cast<uint32_t>(window.first));
      to.add_replay_windows(static_cast<uint32_t>(window.last));
    }
    to.mutable_reads()->Assign(from.reads.begin(), from.reads.end());
    to.mutable_writes()->Assign(from.writes.begin(), from.writes.end());
    to.mutable_mutates()->Assign(from.mutates.begin(), from.mutates.end());
  }
  proto.mutable_required()->Assign(graph.required.begin(),
                                   graph.required.end());
  return proto;
}

StatusOr<v1::StepGraph> ReadGraphBytes(std::string_view serialized) {
  v1::StepGraph proto;
  if (serialized.size() > (size_t{1} << 30) ||
      !proto.ParseFromArray(serialized.data(),
                            static_cast<int>(serialized.size()))) {
    return InvalidArgument(StrCat("step graph: these ", serialized.size(),
                                  " bytes are not a serialized StepGraph"));
  }
  ASSIGN_OR_RETURN([[maybe_unused]] const planner::StepGraph checked,
                   ToPlanner(proto));
  return proto;
}

}  // namespace reprise::formats
