// SPDX-License-Identifier: Apache-2.0
//
// reprise status: the server, its agents, queue and store.
#include <sys/stat.h>

#include <algorithm>
#include <string>

#include "base/data_dir.h"
#include "base/str_cat.h"
#include "clients/cli/core/command.h"
#include "clients/cli/core/console.h"
#include "clients/cli/core/files.h"
#include "clients/cli/server/server_client.h"

namespace reprise::cli {
namespace {

constexpr int64_t kNsPerSecond = 1'000'000'000;

// "what was recorded until 2026-11-23 15:30:41 is in FOLDER (36.4 MiB)". The
// newest records may still be in the write-ahead log.
std::string StoredIn(const std::string& folder) {
  int64_t bytes = 0;
  int64_t newest_ns = 0;
  for (const char* name : {"/reprise.db", "/reprise.db-wal"}) {
    struct stat file = {};
    if (::stat((folder + name).c_str(), &file) != 0) continue;
    bytes += file.st_size;
    newest_ns = std::max<int64_t>(
        newest_ns, file.st_mtim.tv_sec * kNsPerSecond + file.st_mtim.tv_nsec);
  }
  return StrCat("what was recorded until ", LocalTime(newest_ns), " is in ",
                folder, " (", FormatBytes(bytes), ")");
}

class StatusCommand : public Command {
 public:
  void Define(CommandLine& line) override {
    Verb& verb =
        line.AddVerb("status", "Show the server, its agents, queue and store");
    verb.Footer(
        "Exits with 4 when no server answers.\n\n"
        "Example:\n  reprise status --json");
  }

  int Run(const Globals& globals, Console& console) override {
    const auto client = ServerClient::Connect(globals);
    if (!client.ok()) {
      const StatusOr<std::string> folder = DefaultDataDir();
      // A named server is elsewhere: what is stored here is unrelated to it.
      if (NamesServer(globals) ||
          client.status().code() != Code::kUnavailable || !folder.ok() ||
          !Exists(*folder + "/reprise.db")) {
        return console.ConnectError(client.status());
      }
      return console.Error(
          Unavailable(StrCat("no server is running here; ", StoredIn(*folder),
                             ", which `reprise show latest` reads")));
    }
    const auto status = client->GetStatus();
    if (!status.ok()) return console.Error(status.status());
    if (globals.json) {
      console.Line(ProtoToJson(*status));
    } else {
      Print(*status, client->endpoint(), console);
    }
    return kDone;
  }

 private:
  static void PrintForward(const v1::ServerStatus& status, Console& console) {
    const v1::ForwardStatus& forward = status.forward();
    const bool behind =
        forward.chunks() + forward.sessions() + forward.runs() > 0;
    std::string line = StrCat("  forward  to ", forward.target(), ": ");
    if (!behind) {
      line += "it has everything";
    } else {
      line +=
          StrCat(forward.chunks(), " chunks of ", forward.sessions(),
                 " sessions and the plans of ", forward.runs(), " runs to go");
      if (forward.behind_since_ns() > 0) {
        line += StrCat(", behind since ", LocalTime(forward.behind_since_ns()));
      }
    }
    console.Line(line);
    if (!forward.trouble().empty()) {
      console.Line("           " + forward.trouble(), Tone::kBad);
    }
  }

  static void Print(const v1::ServerStatus& status, const Endpoint& endpoint,
                    Console& console) {
    if (status.degraded().empty()) {
      console.Line(StrCat("reprised ", status.version(), " is running at ",
                          endpoint.url),
                   Tone::kGood);
    } else {
      console.Line(StrCat("reprised ", status.version(), " at ", endpoint.url,
                          ": ", status.degraded()),
                   Tone::kBad);
    }
    // The user asked for the link, so print it even to a pipe.
    const bool is_read = console.results_on_terminal();
    console.Line(StrCat("  page     ", endpoint.Page("/", is_read),
                        is_read || endpoint.token.empty()
                            ? ""
                            : " (its token is shown on a terminal only)"));
    console.Line(StrCat("  started  ", LocalTime(status.started_ns())));
    // The rest is for those who may see everything (StatusRequest.brief).
    if (status.data_dir().empty()) return;
    console.Line(StrCat("  store    ", FormatBytes(status.store_bytes()),
                        " in ", status.data_dir(), ", spool ",
                        FormatBytes(status.spool_bytes())));
    if (status.has_forward()) PrintForward(status, console);
    console.Line(StrCat("  socket   ", status.agent_socket()));
    console.Line(StrCat("  runs     ", status.runs()));
    console.Line(StrCat("  queue    ", status.plan_queue(),
                        status.plan_queue() == 1 ? " plan" : " plans"));
    for (const v1::AgentStatus& agent : status.agents()) {
      console.Line(StrCat("  agent    pid ", agent.pid(), ", run ",
                          agent.run_id(),
                          agent.connected() ? ", connected" : ", gone"));
      for (const std::string& capability : agent.capabilities()) {
        console.Line("             " + capability);
      }
    }
    if (status.agents().empty()) console.Line("  agents   none");
  }
};

}  // namespace

std::unique_ptr<Command> MakeStatusCommand() {
  return std::make_unique<StatusCommand>();
}

}  // namespace reprise::cli
