// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace reprise::server {

// A folder that is removed with its contents.
class TemporaryFolder {
 public:
  TemporaryFolder();
  ~TemporaryFolder();
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

}  // namespace reprise::server
