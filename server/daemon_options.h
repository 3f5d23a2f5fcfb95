// SPDX-License-Identifier: Apache-2.0
//
// The flags of reprised and `reprise serve`.
#pragma once

#include <string>

#include "base/status.h"
#include "server/log.h"
#include "server/net/tls_front.h"

namespace reprise::server {

struct DaemonOptions {
  std::string listen = "127.0.0.1:7070";
  // Either of these: split mode, one port per protocol, and no `listen`.
  std::string grpc_listen;
  std::string http_listen;
  std::string data_dir;
  std::string agent_socket;
  // Holds the token that callers over TCP need; empty: DATA_DIR/token, which is
  // made where it is missing.
  std::string token_file;
  // Without a certificate only this machine's loopback may be listened on.
  TlsOptions tls;
  // Ends by itself, `linger` after the last agent has gone and nobody has asked
  // anything, so that the page of a run that has ended can still be read.
  bool private_daemon = false;
  int64_t linger_seconds = 3600;
  // A private daemon does not end before its parent, when that is this process:
  // who started it has questions once the job is gone. 0: nobody has.
  int64_t with_parent = 0;
  LogLevel log_level = LogLevel::kInfo;
  // Largest database file in pages of 4 KiB; 0: as large as the disk.
  int64_t max_store_pages = 0;
  // What goes by itself, oldest first: runs that ended longer ago than this,
  // and as many as the store is larger than this. 0: nothing does.
  int64_t keep_seconds = 0;
  int64_t keep_bytes = 0;
};

struct ParsedOptions {
  DaemonOptions options;
  // Set when the process is done already: --help, --version, wrong usage.
  bool exit = false;
  int exit_code = 0;
};

// Prints help and usage errors itself.
ParsedOptions ParseDaemonOptions(int argc, char** argv);

}  // namespace reprise::server
