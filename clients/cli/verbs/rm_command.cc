// SPDX-License-Identifier: Apache-2.0
//
// reprise rm: removes runs from the server's store.
#include <grpcpp/grpcpp.h>
#include <unistd.h>

#include <charconv>
#include <chrono>
#include <cstdio>
#include <optional>
#include <string>
#include <vector>

#include "base/str_cat.h"
#include "clients/cli/core/command.h"
#include "clients/cli/core/console.h"
#include "clients/cli/server/open_channel.h"
#include "clients/cli/server/server_client.h"
#include "reprise/v1/admin.grpc.pb.h"

namespace reprise::cli {
namespace {

// Removing many gigabytes takes a while.
constexpr auto kRemovalPatience = std::chrono::minutes(10);

// Parses "30d", "12h" or "45m" as seconds.
StatusOr<int64_t> ParseAge(const std::string& text) {
  int64_t count = 0;
  const char* end = text.data() + text.size();
  const auto [unit, error] = std::from_chars(text.data(), end, count);
  int64_t seconds = 0;
  if (error == std::errc() && unit + 1 == end) {
    if (*unit == 'd') seconds = 86400;
    if (*unit == 'h') seconds = 3600;
    if (*unit == 'm') seconds = 60;
  }
  if (seconds == 0 || count < 0 || count > 1'000'000) {
    return InvalidArgument(StrCat("--older-than: cannot read \"",
                                  text.substr(0, 40),
                                  "\"; write 30d, 12h or 45m"));
  }
  return count * seconds;
}

std::string Count(int count) {
  return StrCat(count, count == 1 ? " run" : " runs");
}

class RmCommand : public Command {
 public:
  void Define(CommandLine& line) override {
    Verb& verb = line.AddVerb("rm", "Remove runs from the store");
    verb.Add("RUN", runs_, "Run ids, their beginnings, or \"latest\"",
             {.completes = Completes::kRuns});
    verb.Add("--older-than", older_than_,
             "Runs that ended longer ago: 30d, 12h, 45m");
    verb.Add("--keep-last", keep_last_, "Remove all runs but the newest N",
             {.range = {{0, 1'000'000}}});
    verb.Flag("--yes,-y", yes_, "Do not ask");
    verb.Footer(
        "Runs that are still going on are kept. With both rules, only runs "
        "that "
        "match both are\nremoved.\n\nExample:\n  reprise rm --older-than 30d "
        "--keep-last 20");
  }

  int Run(const Globals& globals, Console& console) override {
    v1::RemoveRunsRequest request;
    for (const std::string& run : runs_) request.add_run_id(run);
    if (keep_last_) {
      request.set_keep_newest(static_cast<uint32_t>(*keep_last_));
    }
    if (!older_than_.empty()) {
      const StatusOr<int64_t> seconds = ParseAge(older_than_);
      if (!seconds.ok()) return console.UsageError(seconds.status().message());
      const auto now = std::chrono::system_clock::now().time_since_epoch();
      request.set_ended_before_ns(
          std::chrono::duration_cast<std::chrono::nanoseconds>(now).count() -
          *seconds * 1'000'000'000);
    }
    const bool rule = keep_last_.has_value() || !older_than_.empty();
    if (runs_.empty() == !rule) {
      return console.UsageError(
          "rm: name runs, or say which by --older-than and --keep-last");
    }
    if (!yes_ && isatty(STDIN_FILENO) == 0) {
      return console.UsageError(
          "rm: the input is not a terminal, so nobody can confirm; add --yes");
    }
    const auto client = ServerClient::Connect(globals);
    if (!client.ok()) return console.Error(client.status());
    if (!yes_) {
      request.set_dry_run(true);
      const auto chosen = Ask(*client, request);
      if (!chosen.ok()) return console.Error(chosen.status());
      if (chosen->runs_size() > 0 && !Confirmed(*chosen)) {
        console.Note("nothing was removed");
        return kDone;
      }
      // Remove exactly what was shown, not what has matched since then.
      request = {};
      for (const v1::Run& run : chosen->runs())
        request.add_run_id(run.run_id());
      if (chosen->runs_size() == 0) return Report(*chosen, globals, console);
    }
    const auto removed = Ask(*client, request);
    if (!removed.ok()) return console.Error(removed.status());
    return Report(*removed, globals, console);
  }

 private:
  static StatusOr<v1::RemoveRunsResponse> Ask(
      const ServerClient& client, const v1::RemoveRunsRequest& request) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + kRemovalPatience);
    v1::RemoveRunsResponse response;
    const grpc::Status status = v1::Admin::NewStub(client.channel())
                                    ->RemoveRuns(&context, request, &response);
    if (!status.ok()) return FromGrpc(status, client.endpoint());
    return response;
  }

  static bool Confirmed(const v1::RemoveRunsResponse& chosen) {
    for (const v1::Run& run : chosen.runs()) {
      std::fprintf(stderr, "  %s  %s, %llu steps\n", run.run_id().c_str(),
                   run.name().c_str(),
                   static_cast<unsigned long long>(run.steps()));
    }
    std::fprintf(stderr, "Remove %s? [y/N] ",
                 Count(chosen.runs_size()).c_str());
    std::fflush(stderr);
    const int answer = std::getchar();
    return answer == 'y' || answer == 'Y';
  }

  static int Report(const v1::RemoveRunsResponse& removed,
                    const Globals& globals, Console& console) {
    if (globals.json) {
      console.Line(ProtoToJson(removed));
      return kDone;
    }
    for (const v1::Run& run : removed.runs()) {
      console.Line(StrCat("  ", run.run_id(), "  ", run.name()));
    }
    console.Line(StrCat(Count(removed.runs_size()), " removed; the store has ",
                        FormatBytes(removed.store_bytes_after()), ", before ",
                        FormatBytes(removed.store_bytes_before())));
    return kDone;
  }

  std::vector<std::string> runs_;
  std::string older_than_;
  std::optional<int> keep_last_;
  bool yes_ = false;
};

}  // namespace

std::unique_ptr<Command> MakeRmCommand() {
  return std::make_unique<RmCommand>();
}

}  // namespace reprise::cli
