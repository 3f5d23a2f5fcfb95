// SPDX-License-Identifier: Apache-2.0
//
// The Ingest service: one reactor per stream, no thread of its own.
//
//   Hello ──▶ check ──▶ committer ──▶ Welcome{resume_after}
//   Chunk ──▶ check ──▶ committer ──▶ Ack{committed}, or Resend{expected}
//   Bye   ──▶           committer
//
// At most kMaxInflight items of a stream are in the committer. Beyond that the
// stream is not read, and gRPC's flow control slows the sender down. A session
// has one stream: a newer one whose Hello is stored ends the older with ABORTED,
// so that a collector whose connection broke unnoticed is not locked out.
#pragma once

#include <grpcpp/grpcpp.h>

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "reprise/v1/ingest.grpc.pb.h"
#include "server/core/caller.h"
#include "server/core/metrics.h"
#include "server/ingest/committer.h"

namespace reprise::server {

class IngestCall;

// The streams that have sent their Hello, by session.
class IngestRegistry {
 public:
  // Registers a stream; returns the session's previous one, or null.
  std::shared_ptr<IngestCall> Enter(const std::string& session_id,
                                    std::shared_ptr<IngestCall> call);
  void Leave(const std::string& session_id, const IngestCall* call);
  std::vector<std::shared_ptr<IngestCall>> All() const;
  // The session's stream, or null.
  std::shared_ptr<IngestCall> Find(const std::string& session_id) const;

 private:
  mutable std::mutex mutex_;
  std::map<std::string, std::shared_ptr<IngestCall>> calls_;
};

class IngestService final : public v1::Ingest::CallbackService {
 public:
  // Returns who opens a stream: within the process nobody but the server itself;
  // the collector's Hello says which user the kernel saw.
  using Admit =
      std::function<StatusOr<Caller>(const grpc::CallbackServerContext&)>;

  IngestService(Committer& committer, Metrics& metrics, Admit admit)
      : committer_(committer), metrics_(metrics), admit_(std::move(admit)) {}

  grpc::ServerBidiReactor<v1::Up, v1::Down>* Stream(
      grpc::CallbackServerContext* context) override;

  // Sends a plan to every session of a run; returns the number of sessions.
  int PushPlan(const std::string& run_id, const v1::Plan& plan,
               const std::string& replaces);

  // Asks every session of a run to record a few steps; returns the number of
  // sessions.
  int OpenWindow(const std::string& run_id, const v1::OpenWindow& window);

  // Sends a message to one session; returns whether it has a stream.
  bool Relay(const std::string& session_id, const v1::Down& down);

  // Tells every stream that the server is shutting down.
  void DrainAll();

  // Returns whether the session has an open stream.
  bool Connected(const std::string& session_id) const {
    return registry_.Find(session_id) != nullptr;
  }

 private:
  int SendToAll(const std::string& run_id, const v1::Down& down);

  Committer& committer_;
  Metrics& metrics_;
  const Admit admit_;
  IngestRegistry registry_;
};

}  // namespace reprise::server
