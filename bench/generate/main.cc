// SPDX-License-Identifier: Apache-2.0
//
// generate KIND: writes the step graph of an invented training job, to try the
// planner and to compare planners. Exit codes: 0 done, 1 not written, 2 usage.
#include <CLI/CLI.hpp>
#include <cstdint>
#include <fstream>
#include <iostream>
#include <string>

#include "base/str_cat.h"
#include "bench/generate/generate.h"
#include "formats/convert/graph_json.h"
#include "formats/convert/graph_proto.h"
#include "planner/model/evaluate.h"

namespace reprise {
namespace {

int Fail(int code, const std::string& why) {
  std::cerr << "generate: " << why << "\n";
  return code;
}

int Run(const std::string& name, int ops, uint64_t seed, std::string out) {
  const auto kind = planner::ParseGraphKind(name);
  if (!kind.ok()) return Fail(2, kind.status().message());
  const auto graph =
      planner::Generate({.kind = *kind, .ops = ops, .seed = seed});
  if (!graph.ok()) return Fail(2, StrCat("--", graph.status().message()));
  if (out.empty()) out = StrCat(name, "-", ops, ".graph.json");
  std::ofstream file(out);
  file << formats::WriteGraphText(formats::ToProto(*graph));
  file.close();
  if (!file) return Fail(1, out + ": cannot be written");
  const auto evaluation = planner::Evaluate(
      *graph, planner::BaseSchedule(*graph, planner::FreePolicy::kEager), {});
  if (!evaluation.ok()) return Fail(1, evaluation.status().message());
  std::cout << graph->op_count() << " ops, " << graph->storage_count()
            << " storages.  Peak " << FormatBytes(evaluation->peak_bytes)
            << ", " << FormatBytes(graph->static_bytes)
            << " of it static   Step " << FormatDuration(evaluation->time_ns)
            << "\n  wrote " << out << "\n";
  return 0;
}

}  // namespace
}  // namespace reprise

int main(int argc, char** argv) {
  CLI::App app("Writes the step graph of a made-up training job.", "generate");
  std::string kind;
  std::string out;
  int ops = 1000;
  uint64_t seed = 1;
  app.add_option("KIND", kind,
                 "transformer, resnet, unet, moe, diffusion-unet or layered")
      ->required();
  app.add_option("--ops", ops,
                 "Most ops it may have, 100 to 1000000; whole blocks are made")
      ->capture_default_str();
  app.add_option("--seed", seed,
                 "Seed of the measurement noise and, for layered, of the ops")
      ->capture_default_str();
  app.add_option("-o,--out", out, "The file (KIND-OPS.graph.json)");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  return reprise::Run(kind, ops, seed, out);
}
