// SPDX-License-Identifier: Apache-2.0
//
// One HTTP connection: reads a request, answers it, reads the next. Included
// only by http.cc, http_connection.cc and http_answers.cc, to keep Boost out of everything else.
//
//   head ─┬─▶ whole body ─▶ HttpHandler ─────────────────┐
//         └─▶ part, part, ... ─▶ HttpUpload ─▶ Finish ───┴─▶ reply ─▶ next head
//
// A request that is refused before its body was read is answered at once. What
// still arrives is discarded for a while (Linger), because closing a socket
// with unread bytes would discard the response on the client's side.
#pragma once

#include <atomic>
#include <boost/asio/ip/tcp.hpp>
#include <boost/beast/core.hpp>
#include <boost/beast/http.hpp>
#include <chrono>
#include <deque>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "server/core/byte_share.h"
#include "server/net/http.h"

namespace reprise::server {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = boost::beast::http;
using tcp = asio::ip::tcp;

inline constexpr uint32_t kMaxHeaderBytes = 16 << 10;
// Time limits: for a request to arrive once begun (for an upload: each part),
// for an idle connection, and for a write to a slow client.
inline constexpr auto kReadTimeout = std::chrono::seconds(60);
inline constexpr auto kWriteTimeout = std::chrono::seconds(60);

class Connection;

// All open connections, so that they can be closed. HTTP thread only.
using Connections = std::set<Connection*>;

// Everything but the atomics belongs to the HTTP thread.
class Connection : public std::enable_shared_from_this<Connection> {
 public:
  Connection(tcp::socket socket, bool tls, const HttpHandler& handler,
             const HttpUploadOpener& uploads, ByteShare& bodies,
             Connections& connections)
      : stream_(std::move(socket)),
        tls_(tls),
        handler_(handler),
        uploads_(uploads),
        bodies_(bodies),
        connections_(connections) {
    connections_.insert(this);
  }
  ~Connection() {
    ForgetBody();
    connections_.erase(this);
  }

  // Reads the head of the next request, which decides what to do with the body.
  void Read();
  void Close();

  // ---- Answers, on the HTTP thread ----

  void Respond(HttpResponse response);
  void BeginStream(int status, const HttpHeaders& headers);
  void Write(std::string bytes);
  void End();

  const auto& executor() { return executor_; }

  std::atomic<size_t> unsent_{0};
  std::atomic<bool> cancelled_{false};

 private:
  class Reply;

  void OnHead(beast::error_code error);
  void OnRead(beast::error_code error);
  void Handle(HttpRequest request);

  void BeginUpload(HttpUploadStart start);
  void ReadPart();
  void OnPart(beast::error_code error);
  void Refuse(HttpResponse response);
  void Refuse(int status, const char* why);
  void Linger();
  // Reserves room for the body in the share of all bodies; false if there is
  // none.
  bool ExpectBody();
  void ForgetBody() { bodies_.Give(std::exchange(body_bytes_, 0)); }
  HttpRequest RequestOf(const http::request_header<>& head);

  void OnAnswered(beast::error_code error);
  void WriteMore();
  void OnChunkWritten(beast::error_code error);
  // The client of a stream sends nothing more, so when its socket becomes
  // readable it has disconnected.
  void WatchForClose();

  beast::tcp_stream stream_;
  const bool tls_;
  const HttpHandler& handler_;
  const HttpUploadOpener& uploads_;
  ByteShare& bodies_;
  Connections& connections_;
  const beast::tcp_stream::executor_type executor_ = stream_.get_executor();
  beast::flat_buffer buffer_;
  std::optional<http::request_parser<http::empty_body>> head_parser_;
  std::optional<http::request_parser<http::string_body>> parser_;
  // A body that is passed to `upload_` in parts.
  std::optional<http::request_parser<http::buffer_body>> part_parser_;
  std::string part_;
  std::unique_ptr<HttpUpload> upload_;
  unsigned version_ = 11;  // of the request
  bool head_ = false;
  bool accepts_gzip_ = false;
  bool keep_alive_ = true;
  bool answered_ = false;
  bool streaming_ = false;
  bool writing_ = false;
  bool ended_ = false;
  bool unread_ = false;  // the client may still send a refused body
  size_t lingered_bytes_ = 0;
  uint64_t body_bytes_ = 0;  // taken of bodies_
  std::deque<std::string> chunks_;
};

}  // namespace reprise::server
