// SPDX-License-Identifier: Apache-2.0
//
// Sends what belongs to a run beside its sessions to the centre: the step graph,
// the plans, and how its process ended.
#pragma once

#include <grpcpp/grpcpp.h>

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>

#include "base/status.h"
#include "reprise/v1/forward.grpc.pb.h"
#include "reprise/v1/planner.grpc.pb.h"
#include "reprise/v1/query.grpc.pb.h"
#include "server/forward/central_channel.h"
#include "server/forward/outbox.h"
#include "server/store/store.h"

namespace reprise::server {

// Used by one thread, but for Cancel.
class RunSender {
 public:
  // `started_ns` tells this daemon from the centre.
  RunSender(Store& store, std::shared_ptr<grpc::Channel> channel,
            ForwardOptions options, Outbox& outbox, int64_t started_ns);

  // Asks the centre who it is. UNAVAILABLE says why that fails;
  // FAILED_PRECONDITION: it is this daemon itself.
  Status Greet();

  // Sends what the centre does not have of a run yet. What it refuses for good
  // is logged once, and counts as sent until the next start. UNAVAILABLE: the
  // centre is away; RESOURCE_EXHAUSTED: it has no room for something.
  Status Send(const std::string& run_id, const RunFacts& facts);

  // Returns whether the centre does not have all that the run's row says.
  bool Due(const std::string& run_id, const RunFacts& facts) const;

  // Forgets the runs that are not among these.
  Status KeepOnly(const std::set<std::string>& runs);

  // Reads what was sent before; call it once, before all others.
  Status Load();

  // Ends the call under way, and all later ones. Thread-safe.
  void Cancel();

 private:
  Status SendGraph(const std::string& run_id, const std::string& graph_id);
  Status SendPlan(const std::string& run_id, const std::string& plan_id,
                  bool newest);
  Status SendEnd(const std::string& run_id, const RunFacts& facts);
  // Makes one call; the error as Send returns it, or the call's own.
  Status Call(const std::function<grpc::Status(grpc::ClientContext&)>& call);
  // OK if it is no use to send this again, which is logged once.
  Status Settle(const Status& sent, const std::string& what);

  Store& store_;
  const ForwardOptions options_;
  Outbox& outbox_;
  const int64_t started_ns_;
  const std::unique_ptr<v1::Planner::Stub> planner_;
  const std::unique_ptr<v1::Forward::Stub> forward_;
  const std::unique_ptr<v1::Query::Stub> query_;
  const std::unique_ptr<v1::Control::Stub> control_;
  std::map<std::string, std::string> sent_;  // facts by run
  std::set<std::string> refused_;

  std::mutex mutex_;
  grpc::ClientContext* under_way_ = nullptr;
  bool cancelled_ = false;
};

}  // namespace reprise::server
