// SPDX-License-Identifier: Apache-2.0
//
// Files as the command reads and writes them. Errors begin with the path and
// end with what to do. A file is written beside its place and moved there, so
// that it is whole or not there at all, also when the disk is full.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/status.h"
#include "reprise/v1/graph.pb.h"

namespace reprise::cli {

// NOT_FOUND, or FAILED_PRECONDITION: a folder, unreadable, empty, or larger
// than `most` bytes.
StatusOr<std::string> ReadFile(const std::string& path, int64_t most);

// ALREADY_EXISTS without `force` where something stands already. Devices and
// pipes are written to, never replaced; a link is followed.
Status WriteFile(const std::string& path, std::string_view text, bool force);

// OK when WriteFile will most likely succeed: asked before long work.
Status CheckWritable(const std::string& path, bool force);

bool Exists(const std::string& path);
bool FolderIsWritable(const std::string& path);

// A step graph file: JSON, or a serialized StepGraph when it ends in ".pb".
struct GraphFile {
  v1::StepGraph graph;
  std::string graph_id;
};
StatusOr<GraphFile> ReadGraph(const std::string& path);

// Where the plan of a graph goes: beside the graph, or into the current folder
// where that cannot be written. "a/resnet.graph.json" -> "a/resnet.plan.json".
std::string PlanPathFor(const std::string& graph_path);

}  // namespace reprise::cli
