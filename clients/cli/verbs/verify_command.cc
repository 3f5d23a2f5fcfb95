// SPDX-License-Identifier: Apache-2.0
//
// reprise verify GRAPH PLAN: checks the claims of a plan with a program that
// shares nothing with the search that made it. Takes two files, or a plan
// stored by the server.
#include <string>

#include "base/str_cat.h"
#include "clients/cli/core/command.h"
#include "clients/cli/core/console.h"
#include "clients/cli/core/files.h"
#include "clients/cli/server/server_client.h"
#include "clients/cli/verbs/file_plan.h"
#include "formats/convert/graph_json.h"
#include "formats/convert/graph_proto.h"
#include "formats/convert/verify_proto.h"
#include "planner/bounds/certify.h"

namespace reprise::cli {
namespace {

class VerifyCommand : public Command {
 public:
  void Define(CommandLine& line) override {
    Verb& verb = line.AddVerb(
        "verify", "Check a plan, its bound or its refusal, independently");
    verb.Add("GRAPH", graph_,
             "A step graph file; or the id of a plan on the server",
             {.required = true, .completes = Completes::kFiles});
    verb.Add("PLAN", plan_, "The plan file", {.completes = Completes::kFiles});
    verb.Footer(
        "Exits with 1 where something that the plan says is not true.\n\n"
        "Example:\n  reprise verify resnet.graph.json resnet.plan.json");
  }

  int Run(const Globals& globals, Console& console) override {
    StatusOr<v1::Verification> found = NotFound("");
    if (!plan_.empty()) {
      found = VerifyFiles();
    } else if (Exists(graph_)) {
      return console.UsageError(
          StrCat(graph_, ": name the plan too: reprise verify GRAPH PLAN"));
    } else {
      const auto client = ServerClient::ConnectOrStart(globals);
      found = client.ok() ? client->Verify(graph_) : client.status();
    }
    if (!found.ok()) return console.Error(found.status());
    if (globals.json) {
      console.Line(ProtoToJson(*found));
    } else {
      console.Line(found->sentence(),
                   found->holds() ? Tone::kGood : Tone::kBad);
    }
    return found->holds() ? kDone : kFailed;
  }

 private:
  StatusOr<v1::Verification> VerifyFiles() {
    ASSIGN_OR_RETURN(const GraphFile file, ReadGraph(graph_));
    ASSIGN_OR_RETURN(const std::string text,
                     ReadFile(plan_, formats::kMaxGraphTextBytes));
    ASSIGN_OR_RETURN(const formats::PlanText read, ReadPlan(plan_, text));
    const v1::Plan& plan = read.plan;
    if (!plan.graph_id().empty() && plan.graph_id() != file.graph_id) {
      return FailedPrecondition(StrCat(plan_, ": the plan is for graph ",
                                       plan.graph_id(), ", but ", graph_,
                                       " is ", file.graph_id));
    }
    ASSIGN_OR_RETURN(const planner::StepGraph graph,
                     formats::ToPlanner(file.graph));
    ASSIGN_OR_RETURN(const planner::Capabilities capabilities,
                     CapabilitiesOf(plan));
    return formats::VerifyPlan(
        graph, plan, planner::ExecutorOf(planner::WithExecution(capabilities)));
  }

  std::string graph_;
  std::string plan_;
};

}  // namespace

std::unique_ptr<Command> MakeVerifyCommand() {
  return std::make_unique<VerifyCommand>();
}

}  // namespace reprise::cli
