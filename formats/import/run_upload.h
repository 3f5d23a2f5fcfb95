// SPDX-License-Identifier: Apache-2.0
//
// A run sent to the server as a collector would send it: one Ingest stream
// whose messages are all acknowledged before Close returns, and the run's step
// graph over PutGraph.
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

  // The first message is a Hello. An error is the server's own.
  Status Send(const v1::Up& up);

  // After Bye: waits until everything is stored.
  Status Close();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// The id under which the server stored it.
StatusOr<std::string> UploadGraph(const std::shared_ptr<grpc::Channel>& channel,
                                  const std::string& run_id,
                                  const v1::StepGraph& graph);

}  // namespace reprise::formats
