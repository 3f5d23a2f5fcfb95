// SPDX-License-Identifier: Apache-2.0
//
// reprise audit: who did what on the server.
#include <grpcpp/grpcpp.h>

#include <chrono>
#include <string>

#include "base/str_cat.h"
#include "clients/cli/core/command.h"
#include "clients/cli/core/console.h"
#include "clients/cli/server/open_channel.h"
#include "clients/cli/server/server_client.h"
#include "reprise/v1/admin.grpc.pb.h"

namespace reprise::cli {
namespace {

constexpr auto kAuditPatience = std::chrono::seconds(30);

std::string LineOf(const v1::AuditEntry& entry) {
  std::string line = StrCat("  ", LocalTime(entry.at_ns()), "  ", entry.who(),
                            "  ", entry.action(), "  ", entry.outcome());
  if (!entry.run_id().empty()) line += StrCat("  run ", entry.run_id());
  if (!entry.subject().empty()) line += StrCat("  ", entry.subject());
  if (!entry.peer().empty()) line += StrCat("  from ", entry.peer());
  return line;
}

class AuditCommand : public Command {
 public:
  void Define(CommandLine& line) override {
    Verb& verb = line.AddVerb("audit", "Show who did what on the server");
    verb.Add("RUN", run_,
             "Only of this run: its id, the beginning of one or \"latest\"",
             {.completes = Completes::kRuns});
    verb.Add("--limit", limit_, "How many entries, newest first",
             {.range = {{1, 10'000}}});
    verb.Footer(
        "Plans, windows, imports, sessions, applied plans, removed runs and "
        "copies of the store,\nwith time, user or certificate, and outcome. "
        "Entries of removed runs are kept.\n\n"
        "Example:\n  reprise audit latest --json");
  }

  int Run(const Globals& globals, Console& console) override {
    const auto client = ServerClient::Connect(globals);
    if (!client.ok()) return console.Error(client.status());
    v1::ReadAuditRequest request;
    request.set_run_id(run_);
    request.set_limit(static_cast<uint32_t>(limit_.value_or(100)));
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + kAuditPatience);
    v1::ReadAuditResponse response;
    const grpc::Status status = v1::Admin::NewStub(client->channel())
                                    ->ReadAudit(&context, request, &response);
    if (!status.ok()) {
      return console.Error(FromGrpc(status, client->endpoint()));
    }
    if (globals.json) {
      console.Line(ProtoToJson(response));
      return kDone;
    }
    for (const v1::AuditEntry& entry : response.entries()) {
      console.Line(LineOf(entry));
      if (!entry.detail().empty()) {
        console.Line(StrCat("      ", entry.detail()));
      }
    }
    if (response.entries().empty()) {
      console.Line(run_.empty() ? "nothing was done yet"
                                : StrCat("nothing is known of run ", run_));
    }
    return kDone;
  }

 private:
  std::string run_;
  std::optional<int> limit_;
};

}  // namespace

std::unique_ptr<Command> MakeAuditCommand() {
  return std::make_unique<AuditCommand>();
}

}  // namespace reprise::cli
