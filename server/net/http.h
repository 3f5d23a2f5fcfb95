// SPDX-License-Identifier: Apache-2.0
//
// HTTP/1.1 on accepted sockets: one thread serves any number of connections and
// event streams. Boost.Beast and asio are used only in http.cc and
// http_connection.h; the rest of the server sees plain structs.
//
//   HttpServer http(handler);        handler: on the HTTP thread, never blocks
//   http.Adopt(fd);                  any thread
//   reply->Respond({...})            any thread, once
//   reply->BeginStream(...); reply->Write(...)...; reply->End();
//
// A body of up to 4 MiB is passed whole. A body that is a file goes to an
// HttpUpload instead, in parts: the next part is read once the last one is
// taken.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "server/core/access.h"

namespace reprise::server {

using HttpHeaders = std::vector<std::pair<std::string, std::string>>;

struct HttpRequest {
  std::string method;  // "GET"
  std::string path;    // without the query
  std::string query;
  HttpHeaders headers;  // names in lower case
  std::string body;
  bool tls = false;
  // The other end, in gRPC's spelling: "ipv4:127.0.0.1:41234".
  std::string peer = {};
  // What the caller may do, once it is known (routes.h).
  Access access = {};

  // Returns the first value of a header, or an empty string.
  std::string_view Header(std::string_view lower_case_name) const;
};

struct HttpResponse {
  int status = 200;
  HttpHeaders headers = {};
  // The body; `view` instead, if not empty, for bytes with static lifetime.
  std::string body = {};
  std::string_view view = {};
};

// Answers one request. Thread-safe; may outlive the connection.
class HttpReply {
 public:
  virtual ~HttpReply() = default;

  virtual void Respond(HttpResponse response) = 0;

  // A response of unknown length.
  virtual void BeginStream(int status, HttpHeaders headers) = 0;
  virtual void Write(std::string bytes) = 0;
  virtual void End() = 0;

  // Writes that have not reached the socket yet.
  virtual size_t unsent() const = 0;
  // Returns whether the client has disconnected; further calls do nothing.
  virtual bool cancelled() const = 0;
};

using HttpHandler =
    std::function<void(HttpRequest request, std::shared_ptr<HttpReply> reply)>;

// Limits: the largest request body; the total of all bodies being received,
// beyond which requests get 503; the connections, beyond which new ones are
// closed.
inline constexpr uint64_t kMaxHttpBodyBytes = 4 << 20;
inline constexpr uint64_t kMaxHttpBodiesBytes = 128 << 20;
inline constexpr size_t kMaxHttpConnections = 4096;

// Receives one body. Destroyed without Finish if the client disconnected.
class HttpUpload {
 public:
  // To be called once, from any thread: with a response to send instead of
  // reading on, or with nothing.
  using Next = std::function<void(std::optional<HttpResponse> refusal)>;

  virtual ~HttpUpload() = default;
  // Called on the HTTP thread; must not block.
  virtual void Take(std::string part, Next next) = 0;
  // The response to a body above the limit.
  virtual HttpResponse TooLarge() const = 0;
  // All parts were taken. The upload is destroyed afterwards; the reply
  // outlives it.
  virtual void Finish(std::shared_ptr<HttpReply> reply) = 0;
};

// Has either `upload` or `refused`; neither for a request that the handler
// answers.
struct HttpUploadStart {
  std::unique_ptr<HttpUpload> upload = nullptr;
  uint64_t max_bytes = 0;
  std::optional<HttpResponse> refused = std::nullopt;
};

// Called on the HTTP thread with the head of every request.
using HttpUploadOpener = std::function<HttpUploadStart(const HttpRequest&)>;

class HttpServer {
 public:
  explicit HttpServer(HttpHandler handler, HttpUploadOpener uploads = {});
  ~HttpServer();

  // Takes over a connected, non-blocking socket. `tls`: the client reaches it
  // through a TLS front.
  void Adopt(int fd, bool tls = false);

  // If no body is being received, returns the highest total of bodies in memory
  // since the last call, else 0.
  uint64_t BodiesEmptiedFrom();

  // Closes all connections and ends the thread.
  void Stop();

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

// The part of a URL after the question mark: "name=a%20file&run=7f3".

// Returns the decoded value of `name`, the last one where it is there more than
// once; empty if it is absent. The bytes are the client's: any may occur.
std::string QueryValue(std::string_view query, std::string_view name);

// Compresses responses. The dashboard's files are compressed at build time
// (brotli); everything else as it is sent (gzip, fast).

// Returns whether an Accept-Encoding header accepts this coding: it is listed,
// and not with q=0.
bool Accepts(std::string_view accept_encoding, std::string_view coding);

// Compresses the body with gzip and sets the headers, if that is worthwhile:
// text or messages of at least 1 KiB that are not compressed already. Does
// nothing in a build without zlib.
void Compress(HttpResponse& response);

}  // namespace reprise::server
