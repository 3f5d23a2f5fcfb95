// SPDX-License-Identifier: Apache-2.0
//
// Sends a run to the server as a collector would: one Ingest stream, whose
// messages are all acknowledged before Close returns, and the run's step graph
// with PutGraph.
#pragma once

#include <grpcpp/channel.h>

#include <memory>
#include <string>

#include "base/status.h"
#include "reprise/v1/graph.pb.h"
#include "reprise/v1/ingest.grpc.pb.h"

namespace reprise::formats {

class RunUpload {
 public:
  explicit RunUpload(std::shared_ptr<grpc::Channel> channel);
  ~RunUpload();

  // Sends a message; the first must be a Hello. Errors are the server's.
  Status Send(const v1::Up& up);

  // To be called after Bye: waits until everything is stored.
  Status Close();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// Sends a graph; returns the id under which the server stored it.
StatusOr<std::string> UploadGraph(const std::shared_ptr<grpc::Channel>& channel,
                                  const std::string& run_id,
                                  const v1::StepGraph& graph);

}  // namespace reprise::formats
