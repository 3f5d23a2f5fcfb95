// SPDX-License-Identifier: Apache-2.0
#include "server/daemon_options.h"

#include <CLI/CLI.hpp>
#include <cstdio>

#include "server/paths.h"

namespace reprise::server {

namespace {

ParsedOptions Usage(const std::string& message) {
  std::fprintf(stderr, "reprised: %s\n", message.c_str());
  return {.options = {}, .exit = true, .exit_code = 2};
}

}  // namespace

ParsedOptions ParseDaemonOptions(int argc, char** argv) {
  ParsedOptions parsed;
  DaemonOptions& options = parsed.options;
  std::string log_level = "info";
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
  app.add_option("--log-level", log_level, "debug, info, warning, error or off")
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
    std::printf("reprised %s\n", REPRISE_VERSION);
    return {.options = {}, .exit = true, .exit_code = 0};
  }
  const StatusOr<LogLevel> level = ParseLogLevel(log_level);
  if (!level.ok()) return Usage("--log-level: " + level.status().message());
  options.log_level = *level;

  if (options.tls.certificate.empty() != options.tls.key.empty()) {
    return Usage("--tls-cert and --tls-key belong together; give both");
  }
  if (!options.tls.client_ca.empty() && options.tls.certificate.empty()) {
    return Usage("--client-ca: is for TLS; give --tls-cert and --tls-key too");
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
  if (options.data_dir.empty()) {
    StatusOr<std::string> folder = DefaultDataDir();
    if (!folder.ok()) return Usage(folder.status().message());
    options.data_dir = *std::move(folder);
  }
  if (options.agent_socket.empty()) {
    options.agent_socket = DefaultAgentSocket();
  }
  return parsed;
}

}  // namespace reprise::server
