// SPDX-License-Identifier: Apache-2.0
//
// Who may call which RPC, and on whose runs: one rule per RPC, all in rules.cc.
//
//   MethodTable::Start ─▶ Gate ─▶ rule: the role, then the request ─▶ handler
//
// A user or sender gets the request narrowed to what is its own: ids of runs are
// looked up among its runs, and replaced by what stands for these alone
// (OwnersRun); lists and rules get it as their owner. What is not its own is answered as if it did not exist, in the
// same words. So handlers know nothing of users, and none can forget to ask. An
// RPC without a rule is an admin's.
#pragma once

#include <functional>
#include <string_view>

#include "base/status.h"
#include "server/core/access.h"
#include "server/service/calls/handlers.h"
#include "server/service/calls/method.h"

namespace reprise::server {

// Streams of Ingest, and PutGraph, are not in the method table: who receives
// them asks for this. `path`: "/reprise.v1.Ingest/Stream".
Status CheckMayCall(const Access& access, std::string_view path);

// Returns what asks for every call of the table. The services must outlive it.
CallGate MakeGate(Services& services);

}  // namespace reprise::server
