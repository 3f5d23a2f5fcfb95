// SPDX-License-Identifier: Apache-2.0
//
// Checks that the planner's statements under a time limit are true, over
// graphs, budgets, limits and threads: no bound may exceed the best plan that
// any run found for the same graph and budget, no run may refuse what another
// one fits, and the verifier must accept every plan and every certificate.
//
//   planner_proofs [--limits MS,...] [--threads N,...] [--budgets PERCENT,...]
//                  [--certify ITERATIONS] GRAPH.json | KIND:OPS ...
//
// KIND:OPS is a generated step (generate.h).
//
// Prints one line per run, then the number of false statements; exits with 1 if
// there is one. Runs depend on the clock, so the statements must hold in any
// run.
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <string>
#include <vector>

#include "bench/generate/generate.h"
#include "formats/solve/solve_plan.h"
#include "planner/bounds/certify.h"
#include "planner/model/problem.h"
#include "planner/planner.h"
#include "planner/verify/verify.h"
#include "tests/planner/graph_json.h"

namespace reprise::planner {
namespace {

struct Options {
  std::vector<int> limits_ms = {50, 100, 250, 500, 1000, 2000, 4000, 8000};
  std::vector<int> threads = {1, 2, 4};
  std::vector<int> percents = {20, 30, 40, 50, 60, 80};
  int64_t certify_iterations = Request{}.certify_iterations;
  std::vector<std::string> files;
};

std::vector<int> Numbers(const char* text) {
  std::vector<int> numbers;
  for (; text != nullptr; text = std::strchr(text, ',')) {
    if (*text == ',') ++text;
    numbers.push_back(std::atoi(text));
  }
  return numbers;
}

// Reads a file or generates a step.
std::optional<StepGraph> GraphOf(const std::string& name) {
  const size_t colon = name.find(':');
  if (colon == std::string::npos) return ReadGraphFile(name);
  const auto kind = ParseGraphKind(name.substr(0, colon));
  if (!kind.ok()) return std::nullopt;
  auto graph =
      Generate({.kind = *kind, .ops = std::atoi(name.c_str() + colon + 1)});
  if (!graph.ok()) return std::nullopt;
  return *std::move(graph);
}

double CpuMs() {
  return static_cast<double>(std::clock()) * 1000 / CLOCKS_PER_SEC;
}

const char* NameOf(BoundProof proof) {
  return proof == BoundProof::kChecked  ? "checked"
         : proof == BoundProof::kSolver ? "solver"
                                        : "none";
}

struct Tally {
  int runs = 0, wrong = 0, checked = 0, solver = 0;
  double slowest_ms = 0;
};

// Checks the plan and its certificate with the verifier only. Returns false if
// it rejects either.
bool Verified(const StepGraph& graph, const Capabilities& capabilities,
              int64_t budget, const Plan& plan, double& ms) {
  const double begin = CpuMs();
  const auto facts = verify::ReadFacts(graph, ExecutorOf(capabilities));
  bool good = facts.ok();
  if (good && plan.feasible) {
    std::vector<int64_t> entries;
    for (const Entry& entry : plan.schedule) {
      entries.push_back(entry.kind == Entry::Kind::kExec ? entry.id
                                                         : -entry.id - 1);
    }
    const auto walked = verify::Walk(*facts, entries);
    good = walked.ok() && walked->peak_bytes == plan.evaluation.peak_bytes &&
           walked->peak_bytes <= budget &&
           walked->time_ns == plan.evaluation.time_ns;
  }
  if (good && plan.certificate.method != verify::Method::kNone) {
    good = verify::CheckCertificate(*facts, plan.certificate).ok();
  }
  ms = CpuMs() - begin;
  return good;
}

// Runs one graph at one budget with all limits and numbers of threads.
void RunCell(const StepGraph& graph, const Problem& problem, int percent,
             const Options& options, Tally& tally) {
  const int64_t budget =
      graph.static_bytes +
      (problem.base.peak_bytes - graph.static_bytes) * percent / 100;
  double best = 1e300, highest = -1;
  bool refused = false;
  for (const int threads : options.threads) {
    for (const int limit : options.limits_ms) {
      using Clock = std::chrono::steady_clock;
      const auto end = Clock::now() + std::chrono::milliseconds(limit);
      Request request{.budget_bytes = budget,
                      .target_gap = 0,
                      .until_stopped = true,
                      .certify_iterations = options.certify_iterations,
                      .should_stop = [end] { return Clock::now() >= end; }};
      const double begin = CpuMs();
      const auto plan =
          formats::SolvePlan(graph, request, {.threads = threads});
      const double cpu = CpuMs() - begin;
      ++tally.runs;
      if (!plan.ok()) {
        ++tally.wrong;
        std::printf("WRONG %s: %s\n", graph.name.c_str(),
                    plan.status().message().c_str());
        continue;
      }
      double ms = 0;
      const bool verified =
          Verified(graph, request.capabilities, budget, *plan, ms);
      tally.wrong += !verified;
      tally.checked += plan->bound_proof == BoundProof::kChecked;
      tally.solver += plan->bound_proof == BoundProof::kSolver;
      tally.slowest_ms = std::max(tally.slowest_ms, ms);
      if (plan->feasible) best = std::min(best, plan->overhead);
      if (plan->feasible || plan->undecided) {
        highest = std::max(highest, plan->bound);
      } else {
        refused = true;
      }
      size_t numbers = 0;
      for (const verify::Node& node : plan->certificate.tree) {
        numbers += node.multipliers.size();
      }
      std::printf(
          "%s %d%% %d ms %d threads: %s %.4f%% bound %.4f%% %s%s, checked "
          "%.4f%%, windows %zu, nodes %zu, numbers %zu, verified in %.1f ms, "
          "cpu %.0f ms%s\n",
          graph.name.c_str(), percent, limit, threads,
          plan->feasible    ? "plan"
          : plan->undecided ? "undecided"
                            : "refused",
          plan->overhead * 100, plan->bound * 100, NameOf(plan->bound_proof),
          plan->proven_optimal ? " proven optimal"
          : plan->is_optimal   ? " optimal"
                               : "",
          problem.base.time_ns > 0
              ? 100.0 * static_cast<double>(plan->certificate.added_ns) /
                    static_cast<double>(problem.base.time_ns)
              : 0.0,
          plan->certificate.at.size(), plan->certificate.tree.size(), numbers,
          ms, cpu, verified ? "" : " NOT VERIFIED");
      std::fflush(stdout);
    }
  }
  if ((best < 1e300 && highest > best + 1e-9) || (refused && best < 1e300)) {
    ++tally.wrong;
    std::printf("WRONG %s at %d%%: bound %.6f%%, plan %.6f%%%s\n",
                graph.name.c_str(), percent, highest * 100, best * 100,
                refused ? ", and refused" : "");
  }
}

int Main(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    const char* value = i + 1 < argc ? argv[i + 1] : "";
    if (word.rfind("--", 0) != 0) {
      options.files.push_back(word);
      continue;
    }
    ++i;
    if (word == "--limits") options.limits_ms = Numbers(value);
    if (word == "--threads") options.threads = Numbers(value);
    if (word == "--budgets") options.percents = Numbers(value);
    if (word == "--certify") options.certify_iterations = std::atoll(value);
  }
  Tally tally;
  for (const std::string& file : options.files) {
    std::optional<StepGraph> graph = GraphOf(file);
    if (!graph.has_value()) {
      std::fprintf(stderr, "%s: cannot be read\n", file.c_str());
      return 2;
    }
    const size_t slash = file.rfind('/');
    graph->name = slash == std::string::npos ? file : file.substr(slash + 1);
    const Problem problem = MakeProblem(*graph, {});
    for (const int percent : options.percents) {
      RunCell(*graph, problem, percent, options, tally);
    }
  }
  std::printf(
      "%d runs, %d false; bounds and refusals: %d checked, %d by the "
      "solver's word; slowest check %.1f ms of CPU\n",
      tally.runs, tally.wrong, tally.checked, tally.solver, tally.slowest_ms);
  return tally.wrong == 0 ? 0 : 1;
}

}  // namespace
}  // namespace reprise::planner

int main(int argc, char** argv) { return reprise::planner::Main(argc, argv); }
