// SPDX-License-Identifier: Apache-2.0
//
// POST /import?name=trace.json: a file, as the page sends what was dropped on
// it, becomes a run by the code of `reprise import` (formats/import).
//
//   body, part by part ─▶ unnamed file in the data folder ─▶ ImportedFile
//                                          ─▶ Ingest, PutGraph (in process)
//
// The body is the file itself, as application/octet-stream: a type that no page
// of another site can send without asking, and asking is never answered. No
// request names a file of this machine.
//
// What is wrong before the file was read is an HTTP error with Connect's
// {"code","message"}. Then comes a stream of lines of JSON:
//
//   {"progress":0.25}                       of the reading
//   {"run":{"runId":"...","name":"...","format":"...","notes":[...], ...}}
//   {"error":{"code":"...","message":"trace.json: byte 17: ..."}}
//
// the last of which is a run or an error. A client that goes away while its
// file is read ends the import; one that is being stored is stored to the end.
//
// Memory: one part of 256 KiB and what the importer takes (about 25 MB); disk:
// the file, for as long as it is read. Two at a time, 4 GiB each.
#pragma once

#include <grpcpp/channel.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "server/net/http.h"
#include "server/service/worker_pool.h"

namespace reprise::server {

inline constexpr uint64_t kMaxImportBytes = uint64_t{4} << 30;
inline constexpr int kMaxImports = 2;

class ImportUploads {
 public:
  // Files lie in `folder` while they are read; runs go to `channel`.
  ImportUploads(std::string folder, std::shared_ptr<grpc::Channel> channel,
                uint64_t max_bytes = kMaxImportBytes);
  ~ImportUploads();

  // With the head of a request to /import. HTTP thread.
  HttpUploadStart Begin(const HttpRequest& head);

  // Ends what is being read, soon. Uploads that come later are refused.
  void Stop();

 private:
  class File;
  class Upload;

  void Import(const File& file, const std::string& name, HttpReply& reply);

  const std::string folder_;
  const std::shared_ptr<grpc::Channel> channel_;
  const uint64_t max_bytes_;
  std::atomic<int> open_{0};
  std::atomic<bool> stopping_{false};
  WorkerPool workers_;
};

}  // namespace reprise::server
