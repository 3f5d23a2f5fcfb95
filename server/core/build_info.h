// SPDX-License-Identifier: Apache-2.0
//
// Which build this is.
#pragma once

namespace reprise::server {

extern const char kVersion[];   // of the project, as in CMakeLists.txt
extern const char kRevision[];  // 12 digits of the commit; empty outside of git

}  // namespace reprise::server
