// SPDX-License-Identifier: Apache-2.0
//
// The verbs for administering the store.
#pragma once

#include <memory>

#include "clients/cli/core/command.h"

namespace reprise::cli {

std::unique_ptr<Command> MakeRmCommand();
std::unique_ptr<Command> MakeBackupCommand();
std::unique_ptr<Command> MakeAuditCommand();

}  // namespace reprise::cli
