// SPDX-License-Identifier: Apache-2.0
//
// Turns a file of any supported kind into a run, for `reprise import` and for a
// file dropped on the page.
//
//   0x80 ...               memory snapshot (pickle)   ─▶ timeline
//   { "traceEvents": ...   profiler trace             ─▶ timeline, step graph
//   { "ops": ... or .pb    step graph                 ─▶ step graph
//   { "reprise.plan/1"     plan: refused, with what to do instead
//
// The kind is determined from the first bytes, not from the name (except for
// .pb, which has no signature). Any of them may be gzipped. Memory is bounded
// as in snapshot.h and trace.h; a step graph of up to 64 MiB is read whole.
#pragma once

#include <grpcpp/channel.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "base/status.h"
#include "formats/import/byte_source.h"
#include "formats/import/recording.h"
#include "formats/import/run_writer.h"
#include "formats/import/snapshot.h"
#include "formats/import/trace.h"
#include "reprise/v1/graph.pb.h"

namespace reprise::formats {

struct ImportOptions {
  std::string file;  // name of the file, for errors
  std::string name;  // of the run
  std::optional<int> device;
  std::optional<int64_t> step;
};

class ImportedFile {
 public:
  // Reads the file. Errors are one sentence that begins with the file's name
  // and says what is wrong and where. Codes as Snapshot::Open, Trace::Open and
  // ReadGraphText.
  static StatusOr<ImportedFile> Read(const OpenSource& open,
                                     const ImportOptions& options);

  const MemorySummary& summary() const;
  // False for a step graph, which has no memory events.
  bool has_memory() const { return snapshot_ || trace_; }
  // Null for a memory snapshot.
  const v1::StepGraph* graph() const { return graph_ ? &*graph_ : nullptr; }

  // Sends it as a run, with its step graph, to the server of `channel`. Codes
  // are the server's, and those of reading the file again.
  Status Send(const std::shared_ptr<grpc::Channel>& channel,
              const RunIdentity& identity) const;
  // Returns whether neighbouring events are merged because a run cannot hold
  // all.
  bool folds() const;

 private:
  ImportedFile() = default;
  Status ReadSnapshot(const OpenSource& open, const ImportOptions& options);
  Status ReadTrace(const OpenSource& open, const ImportOptions& options);
  Status ReadGraph(const OpenSource& open, const ImportOptions& options);

  std::optional<Snapshot> snapshot_;
  std::optional<Trace> trace_;
  std::optional<v1::StepGraph> graph_;
  MemorySummary graph_summary_;  // of a step graph alone
};

// Returns the identity for an import: this machine, the current time, new ids.
RunIdentity NewIdentity();

// Determines which reader a JSON file needs from its first top-level keys. A
// trace may be larger than memory, so the file is not parsed for this.
enum class JsonKind { kTrace, kGraph, kPlan };

// Reads at most 1 MiB of `source`. An unrecognised file is treated as a trace,
// whose reader then says what is missing.
JsonKind KindOfJson(ByteSource& source);

}  // namespace reprise::formats
