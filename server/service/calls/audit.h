// SPDX-License-Identifier: Apache-2.0
//
// Keeps who did what: plans, sweeps, windows, removed runs, copies of the store.
// Sessions, imports and applied plans are kept by the committer, in the
// transaction that stores them; step graphs by the call that receives them
// (put_graph.cc).
//
//   Plan, Sweep, ... ─▶ AuditedCall ─▶ handler
//                          │ Finish: one entry with the outcome
//                          ▼
//                        store
//
// Calls that only read are not kept.
#pragma once

#include <google/protobuf/message.h>

#include <memory>
#include <string_view>

#include "reprise/v1/admin.pb.h"
#include "server/core/caller.h"
#include "server/service/calls/method.h"
#include "server/store/store.h"

namespace reprise::server {

// Writes entries; a failure is logged, and the work goes on.
class Audit {
 public:
  // The store and `identify` must outlive it.
  Audit(Store& store, IdentifyCaller identify)
      : store_(store), identify_(std::move(identify)) {}

  // Adds an entry. Without `who`, it is the server's own. A beginning or "latest"
  // stands for the run of this moment, unless it `is_id`.
  void Add(v1::AuditEntry entry, bool is_id = false);

  // Returns `call`, wrapped if the method's calls are kept.
  std::shared_ptr<Call> Wrap(std::string_view path,
                             const google::protobuf::Message& request,
                             std::shared_ptr<Call> call);

  Caller Identify(const std::string& peer, const Access& access) const {
    return WithAccess(identify_(peer), access);
  }

 private:
  Store& store_;
  const IdentifyCaller identify_;
};

// "ok", or the code in lower case.
std::string_view OutcomeOf(const Status& status);

}  // namespace reprise::server
