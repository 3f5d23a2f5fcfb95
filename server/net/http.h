// SPDX-License-Identifier: Apache-2.0
//
// HTTP/1.1 on accepted sockets, with one thread for any number of
// connections and event streams. Everything of Boost.Beast and asio is in
// http.cc and http_connection.h; the rest of the server sees plain structs.
//
//   HttpServer http(handler);        handler: on the HTTP thread, never blocks
//   http.Adopt(fd);                  any thread
//   reply->Respond({...})            any thread, once
//   reply->BeginStream(...); reply->Write(...)...; reply->End();
//
// A body is handed over whole, up to 4 MiB. One that is a file goes to an
// HttpUpload instead, part by part: the next is read when the last is taken.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace reprise::server {

using HttpHeaders = std::vector<std::pair<std::string, std::string>>;

struct HttpRequest {
  std::string method;  // "GET"
  std::string path;    // without the query
  std::string query;
  HttpHeaders headers;  // names in lower case
  std::string body;
  bool tls = false;

  // The first value, or empty.
  std::string_view Header(std::string_view lower_case_name) const;
};

struct HttpResponse {
  int status = 200;
  HttpHeaders headers;
  // Sent as it is; `view` where not empty, for bytes that live for ever.
  std::string body;
  std::string_view view;
};

// The way back of one request. Thread-safe; outlives the connection.
class HttpReply {
 public:
  virtual ~HttpReply() = default;

  virtual void Respond(HttpResponse response) = 0;

  // A response of unknown length.
  virtual void BeginStream(int status, HttpHeaders headers) = 0;
  virtual void Write(std::string bytes) = 0;
  virtual void End() = 0;

  // Writes that have not reached the socket.
  virtual size_t unsent() const = 0;
  // The client went away; further calls do nothing.
  virtual bool cancelled() const = 0;
};

using HttpHandler =
    std::function<void(HttpRequest request, std::shared_ptr<HttpReply> reply)>;

// Largest request body; what all that are being sent may hold together, before
// others are answered 503; most connections, before others are closed.
inline constexpr uint64_t kMaxHttpBodyBytes = 4 << 20;
inline constexpr uint64_t kMaxHttpBodiesBytes = 128 << 20;
inline constexpr size_t kMaxHttpConnections = 4096;

// Takes one body. Destroyed without Finish: the client went away.
class HttpUpload {
 public:
  // Any thread, once: what to answer instead of reading on, or nothing.
  using Next = std::function<void(std::optional<HttpResponse> refusal)>;

  virtual ~HttpUpload() = default;
  // On the HTTP thread, where it must not block.
  virtual void Take(std::string part, Next next) = 0;
  // The answer to a body above the limit.
  virtual HttpResponse TooLarge() const = 0;
  // All parts were taken. It is destroyed then; the reply outlives it.
  virtual void Finish(std::shared_ptr<HttpReply> reply) = 0;
};

// One of two, or neither for a request that the handler answers.
struct HttpUploadStart {
  std::unique_ptr<HttpUpload> upload = nullptr;
  uint64_t max_bytes = 0;
  std::optional<HttpResponse> refused = std::nullopt;
};

// On the HTTP thread, with every request's head.
using HttpUploadOpener = std::function<HttpUploadStart(const HttpRequest&)>;

class HttpServer {
 public:
  explicit HttpServer(HttpHandler handler, HttpUploadOpener uploads = {});
  ~HttpServer();

  // Takes over a connected, non-blocking socket; `tls`: its client speaks TLS
  // with whoever holds the other end.
  void Adopt(int fd, bool tls = false);

  // Once no body is being sent: the most bytes that were, together, since it
  // was last asked; else 0.
  uint64_t BodiesEmptiedFrom();

  // Closes all connections and ends the thread.
  void Stop();

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace reprise::server
