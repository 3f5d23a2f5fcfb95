// SPDX-License-Identifier: Apache-2.0
//
// The flags of reprised and `reprise serve`.
#pragma once

#include <string>

#include "base/status.h"
#include "server/core/log.h"
#include "server/forward/central_channel.h"
#include "server/net/tls_front.h"

namespace reprise::server {

struct DaemonOptions {
  std::string listen = "127.0.0.1:7070";
  // If either is set, each protocol has its own port, and `listen` is unused.
  std::string grpc_listen;
  std::string http_listen;
  std::string data_dir;
  // "postgresql://...": where runs are stored. Empty: DATA_DIR/reprise.db.
  std::string store_url;
  std::string agent_socket;
  // File with the token that callers over TCP need. Empty: DATA_DIR/token,
  // which is created if missing.
  std::string token_file;
  // Without a certificate the daemon may only listen on loopback.
  TlsOptions tls;
  // Where all that is stored here is sent, too.
  ForwardOptions forward;
  // Exits `linger_seconds` after the last agent has left and the last request
  // was made, so that the page of a finished run can still be read.
  bool private_daemon = false;
  int64_t linger_seconds = 3600;
  // A private daemon does not exit while this process is its parent: whoever
  // started it still has questions when the job is gone. 0: none.
  int64_t with_parent = 0;
  LogLevel log_level = LogLevel::kInfo;
  LogFormat log_format = LogFormat::kText;
  // Largest database file, in pages of 4 KiB; 0: no limit.
  int64_t max_store_pages = 0;
  // Retention: deletes runs that ended longer ago than keep_seconds, and the
  // oldest ones while the store is larger than keep_bytes. 0: no limit.
  int64_t keep_seconds = 0;
  int64_t keep_bytes = 0;
  // Quota: what is stored of one run at most, in bytes; 0: no limit.
  int64_t max_run_bytes = 0;
  // Step graphs that are being sent to it, all together. No flag sets it.
  uint64_t max_sent_graph_bytes = uint64_t{256} << 20;
};

struct ParsedOptions {
  DaemonOptions options;
  // Set if the process should exit: --help, --version, wrong usage.
  bool exit = false;
  int exit_code = 0;
};

// Parses the flags; prints help and usage errors itself.
ParsedOptions ParseDaemonOptions(int argc, char** argv);

}  // namespace reprise::server
