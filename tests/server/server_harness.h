// SPDX-License-Identifier: Apache-2.0
//
// A real daemon in this process, with a free port and a temporary folder (with
// REPRISE_TEST_STORE=postgresql, its store is in a PostgreSQL database), and
// the clients that tests use: gRPC stubs over TCP, an Ingest sender that works
// step by step, and hand-written HTTP.
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
#include "server/daemon/daemon.h"
#include "server/store/store.h"
#include "tests/server/temporary_folder.h"

namespace reprise::server {

// Polls until `condition` holds. Returns false after a generous time limit.
bool Eventually(const std::function<bool()>& condition);

// Whether servers of tests keep runs in PostgreSQL.
bool InPostgres();

class TestServer {
 public:
  // Fills in the folders and addresses that `options` leaves empty.
  explicit TestServer(DaemonOptions options = DefaultOptions());
  ~TestServer();

  static DaemonOptions DefaultOptions();

  void Stop();
  // Starts again on the same folders.
  void Start();

  const std::string& folder() const { return folder_.path(); }
  const std::string& store_url() const { return options_.store_url; }
  Daemon& daemon() { return *daemon_; }
  const std::shared_ptr<grpc::Channel>& channel() { return channel_; }
  v1::Planner::Stub& planner() { return *planner_; }
  v1::Query::Stub& query() { return *query_; }
  v1::Ingest::Stub& ingest() { return *ingest_; }

  // Sends the bytes to the HTTP port and returns what the server sends until it
  // closes. Adds the token after every "Host: localhost"; without a token the
  // server refuses almost everything.
  std::string Http(const std::string& bytes) const;
  std::string HttpWithoutToken(const std::string& bytes) const;
  // The server's token, and the request header that carries it.
  std::string token() const;
  std::string authorization() const;
  // Sends one POST the same way; returns status line, headers and body.
  std::string Post(const std::string& path, const std::string& content_type,
                   const std::string& body) const;

  // Returns a count of stored rows, read while the daemon runs.
  int64_t CountRows(const std::string& sql) const;

  // Shortcuts that expect success.
  std::string PutGraph(const v1::StepGraph& graph, const std::string& run_id);
  v1::Plan Plan(const v1::PlanRequest& request);
  // How a Plan call ends.
  grpc::Status PlanError(const v1::PlanRequest& request);
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

// Returns a channel whose calls carry the token; an empty token is not sent.
std::shared_ptr<grpc::Channel> ChannelTo(const std::string& address,
                                         const std::string& token);

// One Ingest stream, driven step by step.
class Sender {
 public:
  Sender(v1::Ingest::Stub& stub, const std::string& session_id,
         const std::string& run_id, uint64_t epoch = 1);
  ~Sender();

  // Sends Hello and returns the Welcome's resume_after, or nothing if the
  // stream ended instead.
  std::optional<uint64_t> Greet();
  bool Write(const v1::Up& up);
  bool SendChunk(const v1::Chunk& chunk);
  bool Bye(bool killed = false);
  // Returns the next message, or nothing if the stream ended.
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

// Returns a connected TCP socket.
int ConnectTo(const std::string& address);

// Calls a method whose protos are not installed: takes the serialized request
// and returns the first serialized answer, or "" if the call failed.
std::string RawCall(const std::shared_ptr<grpc::Channel>& channel,
                    const std::string& method, const std::string& request);

// Returns a chunk of `columns` with a valid checksum.
v1::Chunk MakeChunk(uint64_t seq, const v1::Columns& columns, uint32_t count);
// A chunk of `count` OP_BEGIN records at time `seq`.
v1::Chunk OpChunk(uint64_t seq, uint32_t count = 3);
// Returns a chunk with step reports only.
v1::Chunk StepChunk(uint64_t seq, const std::vector<v1::StepReport>& steps);

// A forward a -> b -> c, then a backward: x is needed at both ends, so dropping
// it in between saves memory and costs a re-run of op 0.
//
//   op  0  1  2  3  4      storages x 4 KiB, y 8 KiB, z 8 KiB, g 4 KiB
//   makes x  y  z  g  -
//   reads -  x  y  z  x g
v1::StepGraph SmallGraph();

v1::PlanRequest RequestFor(const std::string& graph_id,
                           const std::string& budget);

}  // namespace reprise::server
