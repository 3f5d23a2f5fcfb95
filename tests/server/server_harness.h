// SPDX-License-Identifier: Apache-2.0
//
// A real daemon in this process, on a free port and in a folder of its own,
// and the clients that tests talk to it with: gRPC stubs over TCP, an Ingest
// sender that does one thing at a time, and HTTP by hand.
#pragma once

#include <grpcpp/grpcpp.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "reprise/v1/ingest.grpc.pb.h"
#include "reprise/v1/planner.grpc.pb.h"
#include "reprise/v1/query.grpc.pb.h"
#include "server/daemon.h"
#include "server/store/store.h"

namespace reprise::server {

// Removed with everything in it.
class TemporaryFolder {
 public:
  TemporaryFolder();
  ~TemporaryFolder();
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

// Polls until `condition` holds; false after a generous while.
bool Eventually(const std::function<bool()>& condition);

class TestServer {
 public:
  // `options`: folders and addresses that are empty are filled in.
  explicit TestServer(DaemonOptions options = DefaultOptions());
  ~TestServer();

  static DaemonOptions DefaultOptions();

  void Stop();
  // Starts again on the same folders.
  void Start();

  const std::string& folder() const { return folder_.path(); }
  Daemon& daemon() { return *daemon_; }
  const std::shared_ptr<grpc::Channel>& channel() { return channel_; }
  v1::Planner::Stub& planner() { return *planner_; }
  v1::Query::Stub& query() { return *query_; }
  v1::Ingest::Stub& ingest() { return *ingest_; }

  // Sends the bytes to the HTTP port and reads until the server closes; behind
  // every "Host: localhost" with the token, without it nothing is let in.
  std::string Http(const std::string& bytes) const;
  std::string HttpWithoutToken(const std::string& bytes) const;
  // What the server asks for, and the header that says it.
  std::string token() const;
  std::string authorization() const;
  // The same for one POST; returns status line, headers and body.
  std::string Post(const std::string& path, const std::string& content_type,
                   const std::string& body) const;

  // The stored rows, read beside the running daemon.
  int64_t CountRows(const std::string& sql) const;

  // Shortcuts that expect success.
  std::string PutGraph(const v1::StepGraph& graph, const std::string& run_id);
  v1::Plan Plan(const v1::PlanRequest& request);
  v1::Run GetRun(const std::string& run_id);

 private:
  TemporaryFolder folder_;
  DaemonOptions options_;
  std::unique_ptr<Daemon> daemon_;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<v1::Planner::Stub> planner_;
  std::unique_ptr<v1::Query::Stub> query_;
  std::unique_ptr<v1::Ingest::Stub> ingest_;
};

// A channel whose calls carry the token; an empty one: none.
std::shared_ptr<grpc::Channel> ChannelTo(const std::string& address,
                                         const std::string& token);

// One Ingest stream, used step by step.
class Sender {
 public:
  Sender(v1::Ingest::Stub& stub, const std::string& session_id,
         const std::string& run_id, uint64_t epoch = 1);
  ~Sender();

  // Writes Hello and returns the Welcome's resume_after; nothing when the
  // stream ended instead.
  std::optional<uint64_t> Greet();
  bool Write(const v1::Up& up);
  bool SendChunk(const v1::Chunk& chunk);
  bool Bye(bool killed = false);
  // The next message; nothing when the stream ended.
  std::optional<v1::Down> Read();
  // Reads until everything up to `seq` is acknowledged.
  bool AwaitAck(uint64_t seq);
  grpc::Status Finish();

  v1::Hello hello;

 private:
  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientReaderWriter<v1::Up, v1::Down>> stream_;
  bool finished_ = false;
};

// A connected TCP socket.
int ConnectTo(const std::string& address);

// One call of a method whose protos are not installed: serialized request in,
// serialized first answer out; empty when the call failed.
std::string RawCall(const std::shared_ptr<grpc::Channel>& channel,
                    const std::string& method, const std::string& request);

// A chunk of `columns` with a right checksum.
v1::Chunk MakeChunk(uint64_t seq, const v1::Columns& columns, uint32_t count);
// A chunk of `count` OP_BEGIN records at time `seq`.
v1::Chunk OpChunk(uint64_t seq, uint32_t count = 3);
// A chunk that holds step reports only.
v1::Chunk StepChunk(uint64_t seq, const std::vector<v1::StepReport>& steps);

// Forward a -> b -> c, then backward: x is needed at both ends, so dropping it
// in between saves memory and costs op 0 again.
//
//   op  0  1  2  3  4      storages x 4 KiB, y 8 KiB, z 8 KiB, g 4 KiB
//   makes x  y  z  g  -
//   reads -  x  y  z  x g
v1::StepGraph SmallGraph();

v1::PlanRequest RequestFor(const std::string& graph_id,
                           const std::string& budget);

}  // namespace reprise::server
