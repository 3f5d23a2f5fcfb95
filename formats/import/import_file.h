// SPDX-License-Identifier: Apache-2.0
//
// A file of whatever kind becomes a run: the one way in, of `reprise import`
// and of a file dropped on the page.
//
//   0x80 ...               memory snapshot (pickle)   ─▶ timeline
//   { "traceEvents": ...   profiler trace             ─▶ timeline, step graph
//   { "ops": ... or .pb    step graph                 ─▶ step graph
//   { "reprise.plan/1"     plan: refused, with what to do instead
//
// What a file is, is read from its first bytes, not from its name (but for
// .pb, which has none that tell). Any of them may be gzipped. Memory is bounded
// as in snapshot.h and trace.h; a step graph is read whole, up to 64 MiB.
#pragma once

#include <grpcpp/channel.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "base/status.h"
#include "formats/import/recording.h"
#include "formats/import/run_writer.h"
#include "formats/import/snapshot.h"
#include "formats/import/trace.h"
#include "formats/import/trace_graph.h"
#include "reprise/v1/graph.pb.h"

namespace reprise::formats {

struct ImportOptions {
  std::string file;  // its name, at the head of errors
  std::string name;  // of the run
  std::optional<int> device;
  std::optional<int64_t> step;
};

class ImportedFile {
 public:
  // One sentence that begins with the file's name: what is wrong and where.
  // Codes as Snapshot::Open, Trace::Open and ReadGraphText.
  static StatusOr<ImportedFile> Read(const OpenSource& open,
                                     const ImportOptions& options);

  const MemorySummary& summary() const;
  // A step graph alone has no memory events.
  bool has_memory() const { return snapshot_ || trace_; }
  // Null: a memory snapshot.
  const v1::StepGraph* graph() const { return graph_ ? &*graph_ : nullptr; }

  // Sends it as a run, and its step graph with it, over a channel to a server.
  // Codes are the server's and those of reading on.
  Status Send(const std::shared_ptr<grpc::Channel>& channel,
              const RunIdentity& identity) const;
  // Neighbouring events come together as the run has too many.
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

// Who sends: this machine, now, under new ids.
RunIdentity NewIdentity();

}  // namespace reprise::formats
