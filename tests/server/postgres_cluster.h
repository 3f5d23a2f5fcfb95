// SPDX-License-Identifier: Apache-2.0
//
// A private PostgreSQL server in a temporary folder, on a Unix socket only. As
// root it runs as nobody, because PostgreSQL refuses root.
#pragma once

#include <sys/types.h>

#include <string>

#include "tests/server/temporary_folder.h"

namespace reprise::server {

class PostgresCluster {
 public:
  // Aborts the test program, with a sentence, if there is no PostgreSQL.
  PostgresCluster();
  ~PostgresCluster();

  // One for the whole test program, started when it is first asked for.
  static PostgresCluster& Shared();

  // Creates an empty database and returns its URL.
  std::string NewDatabase();
  // The same database through a socket in another folder.
  std::string UrlIn(const std::string& folder, const std::string& url) const;

  // Runs statements in a database, as its owner; returns what psql prints.
  std::string Run(const std::string& url, const std::string& sql) const;

  void Start();
  // As if the machine lost power: connections break, what was committed stays.
  void Kill();

  const std::string& folder() const { return folder_.path(); }
  std::string socket() const { return folder() + "/.s.PGSQL.5432"; }

 private:
  TemporaryFolder folder_;
  std::string programs_;
  pid_t pid_ = 0;
  int databases_ = 0;
};

}  // namespace reprise::server
