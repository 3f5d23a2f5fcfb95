// SPDX-License-Identifier: Apache-2.0
#include <CLI/CLI.hpp>
#include <array>
#include <charconv>
#include <cstdio>
#include <string_view>
#include <utility>

#include "base/data_dir.h"
#include "base/str_cat.h"
#include "server/core/build_info.h"
#include "server/core/paths.h"
#include "server/daemon/daemon.h"
#include "server/store/postgres_store.h"

namespace reprise::server {

namespace {

ParsedOptions Usage(const std::string& message) {
  std::fprintf(stderr, "reprised: %s\n", message.c_str());
  return {.options = {}, .exit = true, .exit_code = 2};
}

using Units = std::array<std::pair<std::string_view, int64_t>, 3>;
constexpr Units kAges = {{{"d", 86400}, {"h", 3600}, {"m", 60}}};
constexpr Units kSizes = {{{"MiB", int64_t{1} << 20},
                           {"GiB", int64_t{1} << 30},
                           {"TiB", int64_t{1} << 40}}};

// Parses "180d" with the units of `units`; `none` means 0, no limit. Returns
// false if the text is invalid.
bool ParseWithUnit(const std::string& text, std::string_view none,
                   const Units& units, int64_t& value) {
  value = 0;
  if (text == none) return true;
  int64_t count = 0;
  const char* end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, count);
  if (error != std::errc() || count <= 0 || count > 1'000'000) return false;
  for (const auto& [unit, factor] : units) {
    if (std::string_view(rest, static_cast<size_t>(end - rest)) != unit) {
      continue;
    }
    value = count * factor;
    return true;
  }
  return false;
}

}  // namespace

ParsedOptions ParseDaemonOptions(int argc, char** argv) {
  ParsedOptions parsed;
  DaemonOptions& options = parsed.options;
  std::string log_level = "info";
  std::string log_format = "text";
  std::string max_run_bytes = "2GiB";
  std::string keep_for = "180d";
  std::string keep_bytes = "20GiB";
  bool version = false;

  CLI::App app(
      "Collects from training jobs, plans, stores and serves the dashboard.");
  app.name(argc > 0 ? argv[0] : "reprised");
  auto* listen =
      app.add_option("--listen", options.listen,
                     "HOST:PORT for gRPC and HTTP; port 0 takes any free one; "
                     "beyond this machine only with --tls-cert, --tls-key and "
                     "--token-file")
          ->capture_default_str();
  app.add_option("--grpc-listen", options.grpc_listen,
                 "HOST:PORT for gRPC alone (instead of --listen)");
  app.add_option("--http-listen", options.http_listen,
                 "HOST:PORT for HTTP alone (instead of --listen)");
  app.add_option("--data-dir", options.data_dir,
                 "Folder of the database (REPRISE_DATA_DIR, else "
                 "~/.local/state/reprise)");
  app.add_option("--store", options.store_url,
                 "postgresql://HOST/DATABASE: keep runs there, with other "
                 "daemons, instead of in the data folder; a password comes "
                 "from PGPASSFILE")
      ->type_name("URL");
  app.add_option("--agent-socket", options.agent_socket,
                 "Socket that agents connect to (REPRISE_SOCKET, else "
                 "$XDG_RUNTIME_DIR/reprise/agent.sock)");
  app.add_option("--token-file", options.token_file,
                 "File of the token that the page and the API ask for "
                 "(default: token in the data folder, made when missing)");
  app.add_option("--tls-cert", options.tls.certificate,
                 "Certificate in PEM, with its chain: serve TLS");
  app.add_option("--tls-key", options.tls.key, "The key of --tls-cert, in PEM");
  app.add_option("--client-ca", options.tls.client_ca,
                 "Let in only clients with a certificate of this CA (mTLS)");
  app.add_option("--forward-to", options.forward.target,
                 "HOST:PORT of a central reprised that gets all that is stored "
                 "here, too; beyond this machine only with --forward-ca")
      ->envname("REPRISE_FORWARD_TO");
  app.add_option("--forward-token-file", options.forward.token_file,
                 "File of that daemon's token")
      ->envname("REPRISE_FORWARD_TOKEN_FILE");
  app.add_option("--forward-ca", options.forward.ca,
                 "The CA of its certificate, in PEM: forward by TLS")
      ->envname("REPRISE_FORWARD_CA");
  app.add_option("--forward-cert", options.forward.certificate,
                 "Certificate of this daemon, if that one asks for one "
                 "(--client-ca)")
      ->envname("REPRISE_FORWARD_CERT");
  app.add_option("--forward-key", options.forward.key,
                 "The key of --forward-cert, in PEM")
      ->envname("REPRISE_FORWARD_KEY");
  app.add_option("--keep-runs-for", keep_for,
                 "Remove runs that ended longer ago: 180d, 12h; or \"forever\"")
      ->capture_default_str();
  app.add_option("--keep-bytes", keep_bytes,
                 "Remove the oldest runs while the store is larger: 20GiB, "
                 "500MiB; or \"all\"")
      ->capture_default_str();
  app.add_option("--max-run-bytes", max_run_bytes,
                 "Store at most so much of one run, and only count the rest: "
                 "2GiB, 500MiB; or \"all\"")
      ->capture_default_str();
  app.add_flag("--private", options.private_daemon,
               "Listen on any free port; end some time after the last job");
  app.add_option("--linger", options.linger_seconds,
                 "With --private: end this many seconds after the last job has "
                 "gone and the last page was closed (REPRISE_LINGER)")
      ->check(CLI::Range(int64_t{0}, int64_t{30} * 24 * 3600))
      ->envname("REPRISE_LINGER")
      ->capture_default_str();
  app.add_option(
      "--with-parent", options.with_parent,
      "With --private: end no sooner than this process, if it is the parent");
  app.add_option("--log-level", log_level, "info, warning, error or off")
      ->capture_default_str();
  app.add_option("--log-format", log_format, "text, or json: one object a line")
      ->capture_default_str();
  app.add_flag("--version", version, "Print the version");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) {
      (void)app.exit(error);
      return {.options = {}, .exit = true, .exit_code = 0};
    }
    return Usage(std::string(error.what()) + "; see --help");
  }
  if (version) {
    std::printf("reprised %s\n", kVersion);
    return {.options = {}, .exit = true, .exit_code = 0};
  }
  const StatusOr<LogLevel> level = ParseLogLevel(log_level);
  if (!level.ok()) return Usage("--log-level: " + level.status().message());
  options.log_level = *level;
  const StatusOr<LogFormat> format = ParseLogFormat(log_format);
  if (!format.ok()) return Usage("--log-format: " + format.status().message());
  options.log_format = *format;

  if (options.tls.certificate.empty() != options.tls.key.empty()) {
    return Usage("--tls-cert and --tls-key belong together; give both");
  }
  if (!options.tls.client_ca.empty() && options.tls.certificate.empty()) {
    return Usage("--client-ca: is for TLS; give --tls-cert and --tls-key too");
  }
  if (!ParseWithUnit(keep_for, "forever", kAges, options.keep_seconds)) {
    return Usage(StrCat("--keep-runs-for: cannot read \"", keep_for,
                        "\"; write 180d, 12h or forever"));
  }
  if (!ParseWithUnit(keep_bytes, "all", kSizes, options.keep_bytes)) {
    return Usage(StrCat("--keep-bytes: cannot read \"", keep_bytes,
                        "\"; write 20GiB, 500MiB or all"));
  }
  if (!ParseWithUnit(max_run_bytes, "all", kSizes, options.max_run_bytes)) {
    return Usage(StrCat("--max-run-bytes: cannot read \"", max_run_bytes,
                        "\"; write 2GiB, 500MiB or all"));
  }
  const bool split =
      !options.grpc_listen.empty() || !options.http_listen.empty();
  if (split && listen->count() > 0) {
    return Usage(
        "--listen serves both protocols on one port; leave it out with "
        "--grpc-listen or --http-listen");
  }
  if (split) options.listen.clear();
  if (options.private_daemon && !split && listen->count() == 0) {
    options.listen = "127.0.0.1:0";
  }
  if (!options.store_url.empty()) {
    if (!options.store_url.starts_with("postgresql://") &&
        !options.store_url.starts_with("postgres://")) {
      // Not repeated: it may hold a password.
      return Usage(
          "--store: cannot read its text; write postgresql://HOST/DATABASE, or "
          "leave it out for a file in --data-dir");
    }
    if (const Status url = CheckPostgresUrl(options.store_url); !url.ok()) {
      return Usage(url.message());
    }
  }
  if (const Status forward = CheckForwardOptions(options.forward);
      !forward.ok()) {
    return Usage(forward.message());
  }
  if (!options.forward.target.empty() && !options.store_url.empty()) {
    return Usage(
        "--forward-to: daemons with one --store have each other's runs; give "
        "one of the two");
  }
  if (options.data_dir.empty()) {
    StatusOr<std::string> folder = DefaultDataDir();
    if (!folder.ok()) return Usage(folder.status().message());
    options.data_dir = *std::move(folder);
  }
  if (options.agent_socket.empty()) {
    StatusOr<std::string> socket = DefaultAgentSocket();
    if (!socket.ok()) return Usage(socket.status().message());
    options.agent_socket = *std::move(socket);
  }
  return parsed;
}

}  // namespace reprise::server
