// SPDX-License-Identifier: Apache-2.0
//
// A PostgreSQL socket that passes everything on to a server, and breaks a
// connection at the worst moment when told to.
#pragma once

#include <atomic>
#include <list>
#include <string>
#include <thread>

#include "tests/server/temporary_folder.h"

namespace reprise::server {

class CommitProxy {
 public:
  // `server` is the socket of a PostgreSQL server.
  explicit CommitProxy(std::string server);
  ~CommitProxy();

  enum class Cut {
    kNone,
    kRequest,  // before the server has COMMIT
    kAnswer    // after it has committed, before its answer arrives
  };
  void CutNextCommit(Cut cut) { cut_ = cut; }
  int cuts() const { return cuts_; }

  // Where its socket is.
  const std::string& folder() const { return folder_.path(); }

 private:
  void Accept();
  void Serve(int client);

  const TemporaryFolder folder_;
  const std::string server_;
  std::atomic<Cut> cut_{Cut::kNone};
  std::atomic<int> cuts_{0};
  std::atomic<bool> stop_{false};
  int listening_ = -1;
  std::list<std::thread> threads_;
  std::thread acceptor_;
};

}  // namespace reprise::server
