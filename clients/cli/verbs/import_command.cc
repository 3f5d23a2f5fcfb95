// SPDX-License-Identifier: Apache-2.0
//
// reprise import FILE: turns another tool's recording into a run on the server,
// or into a step graph in a file. formats/import has the formats.
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "base/str_cat.h"
#include "clients/cli/core/command.h"
#include "clients/cli/core/console.h"
#include "clients/cli/core/files.h"
#include "clients/cli/server/open_channel.h"
#include "clients/cli/server/server_client.h"
#include "formats/convert/graph_json.h"
#include "formats/import/import_file.h"

namespace reprise::cli {
namespace {

std::string FileName(const std::string& path) {
  return path.substr(path.rfind('/') + 1);
}

class ImportCommand : public Command {
 public:
  void Define(CommandLine& line) override {
    Verb& verb = line.AddVerb(
        "import",
        "Take in a memory snapshot or a profiler trace of PyTorch, or a step "
        "graph");
    verb.Add("FILE", path_,
             "A memory snapshot (torch.cuda.memory._dump_snapshot), a "
             "trace of torch.profiler (export_chrome_trace) or a step "
             "graph; .gz too",
             {.required = true, .completes = Completes::kFiles});
    verb.Add("--out,-o", out_,
             "Write the trace's step graph to this file and ask no "
             "server",
             {.completes = Completes::kFiles});
    verb.Add("--name", name_, "Name of the run (the file's)");
    verb.Add("--device", device_, "Number of the GPU whose memory is read",
             {.not_negative = true});
    verb.Add("--step", step_,
             "Number of the ProfilerStep to read (the last complete one)",
             {.not_negative = true});
    verb.Flag("--force,!--no-force", force_, "Replace an existing file");
    verb.Footer(
        "The file is only read as data: nothing in it is ever run.\n\n"
        "Example:\n  reprise import snapshot.pickle\n"
        "  reprise import trace.json.gz -o step.graph.json\n"
        "  reprise plan step.graph.json --budget 0.7x");
  }

  int Run(const Globals& globals, Console& console) override {
    if (!out_.empty()) {
      const Status writable = CheckWritable(out_, force_);
      if (!writable.ok()) return console.Error(writable);
    }
    // Connect before the work, so that nobody waits for a run that cannot be
    // stored.
    std::optional<ServerClient> client;
    if (out_.empty()) {
      auto connected = ServerClient::ConnectOrStart(globals, true);
      if (!connected.ok()) {
        const Status& status = connected.status();
        if (status.code() == Code::kInvalidArgument) {
          return console.UsageError(status.message());
        }
        // An error of the file takes precedence: it can be reported without a
        // server.
        const StatusOr<formats::ImportedFile> import = Read(console);
        return console.Error(import.ok() ? status : import.status());
      }
      client = *std::move(connected);
    }
    const StatusOr<formats::ImportedFile> import = Read(console);
    if (!import.ok()) return console.Error(import.status());
    return client ? Upload(*import, *client, globals, console)
                  : Write(*import, globals, console);
  }

 private:
  StatusOr<formats::ImportedFile> Read(Console& console) const {
    console.Progress(StrCat("reading ", path_));
    return formats::ImportedFile::Read(
        [path = path_] { return formats::ByteSource::OpenFile(path); },
        {.file = path_,
         .name = name_.empty() ? FileName(path_) : name_,
         .device = device_,
         .step = step_});
  }

  // Writes the step graph to a file.
  int Write(const formats::ImportedFile& import, const Globals& globals,
            Console& console) {
    if (import.graph() == nullptr) {
      return console.Error(FailedPrecondition(StrCat(
          path_,
          ": which op reads which tensor is not in a memory snapshot, so there "
          "is no step graph to write; without --out it becomes a run on the "
          "server")));
    }
    const v1::StepGraph& graph = *import.graph();
    const Status written =
        WriteFile(out_, formats::WriteGraphText(graph), force_);
    if (!written.ok()) return console.Error(written);
    if (globals.json) {
      const nlohmann::ordered_json json = {
          {"graph", out_},
          {"ops", graph.ops_size()},
          {"storages", graph.storages_size()},
          {"peak_bytes", import.summary().peak_bytes},
          {"step_ns", import.summary().duration_ns},
          {"note", graph.note()}};
      console.Line(json.dump());
      return kDone;
    }
    PrintSummary(import, console);
    PrintNotes(import, console);
    console.Line(StrCat("  wrote ", out_));
    console.Note(StrCat("\nNext:  reprise plan ", out_, " --budget 0.7x"));
    return kDone;
  }

  // Sends the run to a server.
  int Upload(const formats::ImportedFile& import, const ServerClient& client,
             const Globals& globals, Console& console) {
    const formats::RunIdentity identity = formats::NewIdentity();
    const std::string& run_id = identity.run_id;
    const bool folded = import.folds();
    console.Progress("sending to " + client.endpoint().target);
    const Status sent = import.Send(client.channel(), identity);
    if (sent.code() == Code::kUnauthenticated) {
      // In the words of every other verb.
      return console.Error(
          FromGrpc({grpc::StatusCode::UNAUTHENTICATED, ""}, client.endpoint()));
    }
    if (!sent.ok()) return console.Error(sent);
    const std::string url = client.endpoint().Page(
        "/runs/" + run_id, console.results_on_terminal());
    if (globals.json) {
      const nlohmann::ordered_json json = {
          {"run_id", run_id},
          {"url", url},
          {"format", import.summary().format},
          {"device", import.summary().device},
          {"events", import.summary().events},
          {"baseline_bytes", import.summary().baseline_bytes},
          {"peak_bytes", import.summary().peak_bytes},
          {"duration_ns", import.summary().duration_ns},
          {"folded", folded},
          {"notes", import.summary().notes}};
      console.Line(json.dump(-1, ' ', false,
                             nlohmann::ordered_json::error_handler_t::replace));
      return kDone;
    }
    PrintSummary(import, console);
    PrintNotes(import, console);
    if (folded) {
      console.Note(
          "  note: neighbouring events were folded to 10 million; no peak is "
          "lost, but who allocated is");
    }
    console.Line(StrCat("  run   ", run_id));
    console.Line(StrCat("  page  ", url));
    return kDone;
  }

  static void PrintSummary(const formats::ImportedFile& import,
                           Console& console) {
    const formats::MemorySummary& summary = import.summary();
    if (import.has_memory()) {
      console.Line(
          StrCat(summary.format, ": ", summary.events, " memory events of ",
                 summary.device, " in ", FormatDuration(summary.duration_ns),
                 ", peak ", FormatBytes(summary.peak_bytes), " after ",
                 FormatDuration(summary.peak_at_ns), " (",
                 FormatBytes(summary.baseline_bytes), " were there before)"));
    }
    if (const v1::StepGraph* graph = import.graph()) {
      console.Line(StrCat(import.has_memory() ? "  " : "",
                          "step graph: ", graph->ops_size(), " ops, ",
                          graph->storages_size(), " storages"));
    }
  }

  static void PrintNotes(const formats::ImportedFile& import,
                         Console& console) {
    for (const std::string& note : import.summary().notes) {
      console.Note("  note: " + note);
    }
  }

  std::string path_;
  std::string out_;
  std::string name_;
  std::optional<int> device_;
  std::optional<int64_t> step_;
  bool force_ = false;
};

}  // namespace

std::unique_ptr<Command> MakeImportCommand() {
  return std::make_unique<ImportCommand>();
}

}  // namespace reprise::cli
