// SPDX-License-Identifier: Apache-2.0
//
// How commands on this machine find a running daemon: two files next to its
// agent socket.
//
//   server.json    addresses, process, version and folders
//   server.token   a copy of the token, for a command that finds the daemon by
//                  its socket, perhaps in a container that mounts the socket's
//                  folder but not the data folder
//
// In the data folder, `port` is where the private daemon listened last: it does
// so again if it can, so that links to its page stay.
#pragma once

#include <cstdint>
#include <string>

#include "base/status.h"

namespace reprise::server {

struct Announcement {
  std::string agent_socket;
  std::string data_dir;
  std::string place;  // where runs are stored, for the log
  std::string version;
  std::string http;         // "127.0.0.1:7070"; empty if it does not listen
  std::string grpc;         // the same
  std::string url;          // that a browser on this machine can open, or empty
  std::string certificate;  // of TLS, or empty
  std::string token;
};

// Writes both files, and the addresses to the log.
Status Announce(const Announcement& daemon);

// Returns whether a daemon says beside this socket that it listens on this
// address: "127.0.0.1:7070".
bool IsAnnounced(const std::string& agent_socket, const std::string& address);

// Returns the port that was kept in this data folder; 0: none.
uint16_t KeptPort(const std::string& data_dir);
// A port that cannot be kept is only another one the next time.
void KeepPort(const std::string& data_dir, uint16_t port);

// Removes both files, if they are there.
void RemoveAnnouncement(const std::string& agent_socket);

}  // namespace reprise::server
