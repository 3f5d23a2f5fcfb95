// SPDX-License-Identifier: Apache-2.0
//
// POST /import?name=trace.json turns a file that was dropped on the page into a
// run, with the code of `reprise import` (formats/import).
//
//   body, part by part ─▶ unnamed file in the data folder ─▶ ImportedFile
//                                          ─▶ Ingest, PutGraph (in process)
//
// The body is the file itself, as application/octet-stream. A page of another
// site cannot send that type without a CORS preflight, which is never answered.
// No request can name a file on this machine.
//
// Errors found before the file is read are HTTP errors with Connect's
// {"code","message"}. After that the response is a stream of JSON lines:
//
//   {"progress":0.25}                       fraction of the file that was read
//   {"run":{"runId":"...","name":"...","format":"...","notes":[...], ...}}
//   {"error":{"code":"...","message":"trace.json: byte 17: ..."}}
//
// The last line is a run or an error. If the client disconnects while its file
// is being read, the import ends; once storing has begun, it is completed.
//
// Memory: one part of 256 KiB plus the importer's (about 25 MB). Disk: the
// file, while it is being read. At most two imports at a time, of 4 GiB each.
#pragma once

#include <grpcpp/channel.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "server/core/caller.h"
#include "server/net/http.h"
#include "server/service/calls/handlers.h"
#include "server/service/calls/worker_pool.h"

namespace reprise::server {

inline constexpr uint64_t kMaxImportBytes = uint64_t{4} << 30;
inline constexpr int kMaxImports = 2;

class ImportUploads {
 public:
  // Uploaded files are in `folder` while they are read; runs go to `channel`.
  // `store` keeps whose they are, and must outlive this.
  ImportUploads(std::string folder, std::shared_ptr<grpc::Channel> channel,
                Store& store, IdentifyCaller identify,
                uint64_t max_bytes = kMaxImportBytes);
  ~ImportUploads();

  // Begins an upload, given the head of a request to /import. HTTP thread.
  HttpUploadStart Begin(const HttpRequest& head, const Access& access);

  // Ends imports that are being read, soon. Later uploads are refused.
  void Stop();

 private:
  class File;
  class Upload;

  void Import(const File& file, const std::string& name, const Caller& caller,
              HttpReply& reply);

  const std::string folder_;
  const std::shared_ptr<grpc::Channel> channel_;
  Store& store_;
  const IdentifyCaller identify_;
  const uint64_t max_bytes_;
  std::atomic<int> open_{0};
  std::atomic<bool> stopping_{false};
  WorkerPool workers_;
};

// POST /reprise.v1.Planner/PutGraph?runId=RUN&graphId=ID stores a step graph
// that is sent whole, as gRPC's PutGraph stores one that is sent in parts.
//
//   application/json    a graph file (reprise.graph/1), or the proto3 JSON of a
//                       StepGraph
//   application/proto   a serialized StepGraph
//
// Both names in the query may be absent. The answer is a GraphRef as JSON:
// {"graphId":"..."}; errors are those of the RPC, as Connect spells them.
//
// A graph may have kMaxGraphUploadBytes. Graphs that are being sent over gRPC
// and over HTTP share Services::sent_graphs; each that was received whole is
// logged and counts in the run's quota.

inline constexpr std::string_view kPutGraphPath =
    "/reprise.v1.Planner/PutGraph";
inline constexpr uint64_t kMaxGraphUploadBytes = 64 << 20;

class GraphPosts {
 public:
  // The services must outlive it and its uploads.
  explicit GraphPosts(Services& services) : services_(services) {}

  // Begins an upload, given the head of a request to kPutGraphPath. HTTP thread.
  HttpUploadStart Begin(const HttpRequest& head, const Access& access);

 private:
  class Upload;

  Services& services_;
};

}  // namespace reprise::server
