// SPDX-License-Identifier: Apache-2.0
//
// Reads and writes files. Errors begin with the path and end with what to do. A
// file is written under a temporary name and renamed, so that it is complete or
// absent, even if the disk is full.
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

// Writes a file. ALREADY_EXISTS if it exists and `force` is false. Devices and
// pipes are written to, never replaced; a link is followed.
Status WriteFile(const std::string& path, std::string_view text, bool force);

// Returns OK if WriteFile will probably succeed. Call it before long work.
Status CheckWritable(const std::string& path, bool force);

// Makes an empty folder of this process's own in TMPDIR, or in /tmp if that is
// too long a path for a socket within; its name begins with `name`.
// FAILED_PRECONDITION: none can be made there.
StatusOr<std::string> NewFolder(const std::string& name);

bool Exists(const std::string& path);
// Returns whether it is an existing path, or can only be one.
bool LooksLikeFile(const std::string& text);
bool FolderIsWritable(const std::string& path);

// A step graph file: JSON, or a serialized StepGraph when it ends in ".pb".
struct GraphFile {
  v1::StepGraph graph;
  std::string graph_id;
};
StatusOr<GraphFile> ReadGraph(const std::string& path);

// Returns the path for the plan of a graph: next to the graph, or in the
// current folder if that is not writable. "a/resnet.graph.json" ->
// "a/resnet.plan.json".
std::string PlanPathFor(const std::string& graph_path);

// Returns the path of another plan beside that one: "a/resnet.plan.json" ->
// "a/resnet.0.5x.plan.json".
std::string PlanPathBeside(const std::string& plan_path,
                           const std::string& budget);

}  // namespace reprise::cli
