// SPDX-License-Identifier: Apache-2.0
//
// reprise generate KIND: writes the step graph of an invented training job, to
// try the planner and to compare planners.
#include <string>

#include "base/str_cat.h"
#include "bench/generate/generate.h"
#include "clients/cli/core/command.h"
#include "clients/cli/core/console.h"
#include "clients/cli/core/files.h"
#include "formats/convert/graph_json.h"
#include "formats/convert/graph_proto.h"
#include "planner/model/evaluate.h"

namespace reprise::cli {
namespace {

class GenerateCommand : public Command {
 public:
  void Define(CommandLine& line) override {
    Verb& verb = line.AddVerb("generate",
                              "Write the step graph of a made-up training job");
    verb.Add("KIND", kind_,
             "transformer, resnet, unet, moe, diffusion-unet or layered",
             {.required = true,
              .offers = {"transformer", "resnet", "unet", "moe",
                         "diffusion-unet", "layered"}});
    verb.Add("--ops", ops_,
             "Most ops it may have, 100 to 1000000; whole blocks are made",
             {.shows_default = true});
    verb.Add("--seed", seed_,
             "Seed of the measurement noise and, for layered, of the ops",
             {.shows_default = true});
    verb.Add("--out,-o", out_, "File for the graph (KIND-OPS.graph.json)",
             {.completes = Completes::kFiles});
    verb.Flag("--force,!--no-force", force_, "Replace an existing file");
    verb.Footer(
        "With --json: the graph on stdout, and no file.\n\n"
        "Example:\n  reprise generate transformer --ops 10000");
  }

  int Run(const Globals& globals, Console& console) override {
    const auto kind = planner::ParseGraphKind(kind_);
    if (!kind.ok()) return console.UsageError(kind.status().message());
    const auto graph =
        planner::Generate({.kind = *kind, .ops = ops_, .seed = seed_});
    if (!graph.ok()) {
      return console.UsageError(StrCat("--", graph.status().message()));
    }
    if (out_.empty() && !globals.json) {
      out_ = StrCat(kind_, "-", ops_, ".graph.json");
    }
    const std::string text = formats::WriteGraphText(formats::ToProto(*graph));
    if (globals.json) console.Raw(text);
    if (out_.empty()) return kDone;
    const Status written = WriteFile(out_, text, force_);
    if (!written.ok()) return console.Error(written);
    if (globals.json) return kDone;

    const planner::Schedule base =
        planner::BaseSchedule(*graph, planner::FreePolicy::kEager);
    const auto evaluation = planner::Evaluate(*graph, base, {});
    if (!evaluation.ok()) return console.Error(evaluation.status());
    console.Line(
        StrCat(graph->op_count(), " ops, ", graph->storage_count(),
               " storages.  Peak ", FormatBytes(evaluation->peak_bytes), ", ",
               FormatBytes(graph->static_bytes), " of it static   Step ",
               FormatDuration(evaluation->time_ns)));
    console.Line(StrCat("  wrote ", out_));
    console.Note(StrCat("\nNext:  reprise plan ", out_, " --budget 0.5x"));
    return kDone;
  }

 private:
  std::string kind_;
  int ops_ = 1000;
  uint64_t seed_ = 1;
  std::string out_;
  bool force_ = false;
};

}  // namespace

std::unique_ptr<Command> MakeGenerateCommand() {
  return std::make_unique<GenerateCommand>();
}

}  // namespace reprise::cli
