// SPDX-License-Identifier: Apache-2.0
//
// One HTTP connection: reads a request, answers it, reads the next. Included
// only by http.cc and http_connection.cc, to keep Boost out of everything else.
//
//   head ─┬─▶ whole body ─▶ HttpHandler ─────────────────┐
//         └─▶ part, part, ... ─▶ HttpUpload ─▶ Finish ───┴─▶ reply ─▶ next head
//
// A request that is refused before its body was read is answered at once. What
// still arrives is discarded for a while (Linger), because closing a socket
// with unread bytes would discard the response on the client's side.
#pragma once

#include <sys/socket.h>

#include <atomic>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/core.hpp>
#include <boost/beast/http.hpp>
#include <chrono>
#include <deque>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "server/byte_share.h"
#include "server/net/compress.h"
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
  void Read() {
    head_parser_.emplace();
    head_parser_->header_limit(kMaxHeaderBytes);
    head_parser_->body_limit(boost::none);  // not known yet
    stream_.expires_after(kReadTimeout);
    http::async_read_header(
        stream_, buffer_, *head_parser_,
        [self = shared_from_this()](beast::error_code error, size_t /*bytes*/) {
          self->OnHead(error);
        });
  }

  void Close() {
    cancelled_ = true;
    ForgetBody();
    beast::error_code ignored;
    stream_.socket().shutdown(tcp::socket::shutdown_both, ignored);
    stream_.close();
  }

  // ---- Answers, on the HTTP thread ----

  void Respond(HttpResponse response) {
    if (cancelled_ || answered_) return;
    answered_ = true;
    ForgetBody();
    if (accepts_gzip_) Compress(response);
    const bool keep = keep_alive_;
    const bool head = head_;
    auto message = std::make_shared<http::response<http::string_body>>(
        http::int_to_status(static_cast<unsigned>(response.status)), version_);
    for (const auto& [name, value] : response.headers) {
      message->insert(name, value);
    }
    message->keep_alive(keep);
    if (!response.view.empty()) response.body = std::string(response.view);
    const size_t length = response.body.size();
    if (!head) message->body() = std::move(response.body);
    message->content_length(length);
    stream_.expires_after(kWriteTimeout);
    if (head) {
      // A response to HEAD carries the length of the body that it omits.
      auto serializer =
          std::make_shared<http::response_serializer<http::string_body>>(
              *message);
      http::async_write_header(
          stream_, *serializer,
          [self = shared_from_this(), message, serializer](
              beast::error_code error, size_t) { self->OnAnswered(error); });
      return;
    }
    http::async_write(
        stream_, *message,
        [self = shared_from_this(), message](beast::error_code error, size_t) {
          self->OnAnswered(error);
        });
  }

  void BeginStream(int status, const HttpHeaders& headers) {
    if (cancelled_ || answered_) return;
    answered_ = true;
    ForgetBody();
    streaming_ = true;
    auto message = std::make_shared<http::response<http::empty_body>>(
        http::int_to_status(static_cast<unsigned>(status)), 11);
    for (const auto& [name, value] : headers) message->insert(name, value);
    message->keep_alive(keep_alive_);
    message->chunked(true);
    auto serializer =
        std::make_shared<http::response_serializer<http::empty_body>>(*message);
    writing_ = true;
    stream_.expires_after(kWriteTimeout);
    http::async_write_header(
        stream_, *serializer,
        [self = shared_from_this(), message, serializer](
            beast::error_code error, size_t) { self->OnChunkWritten(error); });
    WatchForClose();
  }

  void Write(std::string bytes) {
    if (cancelled_) {
      unsent_ = 0;
      return;
    }
    // May run before BeginStream: asio runs work posted by its own thread from
    // a separate queue, so work of another thread may overtake it.
    chunks_.push_back(std::move(bytes));
    if (streaming_) WriteMore();
  }

  void End() {
    if (cancelled_) return;
    ended_ = true;
    if (streaming_) WriteMore();
  }

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

  void OnAnswered(beast::error_code error) {
    if (!error && unread_) {
      Linger();
      return;
    }
    if (error || !keep_alive_) {
      Close();
      return;
    }
    answered_ = false;
    Read();
  }

  void WriteMore() {
    if (writing_) return;
    if (!chunks_.empty()) {
      writing_ = true;
      stream_.expires_after(kWriteTimeout);
      asio::async_write(
          stream_, http::make_chunk(asio::buffer(chunks_.front())),
          [self = shared_from_this()](beast::error_code error, size_t) {
            self->chunks_.pop_front();
            self->unsent_ -= self->unsent_ > 0 ? 1 : 0;
            self->OnChunkWritten(error);
          });
    } else if (ended_) {
      ended_ = false;
      writing_ = true;
      stream_.expires_after(kWriteTimeout);
      asio::async_write(
          stream_, http::make_chunk_last(),
          [self = shared_from_this()](beast::error_code error, size_t) {
            self->writing_ = false;
            self->streaming_ = false;
            beast::error_code ignored;
            self->stream_.socket().cancel(ignored);
            self->OnAnswered(error);
          });
    } else {
      // A stream may be silent between two events for any length of time.
      stream_.expires_never();
    }
  }

  void OnChunkWritten(beast::error_code error) {
    writing_ = false;
    if (error) {
      Close();
      return;
    }
    WriteMore();
  }

  // The client of a stream sends nothing more, so when its socket becomes
  // readable it has disconnected.
  void WatchForClose() {
    stream_.socket().async_wait(
        tcp::socket::wait_read,
        [self = shared_from_this()](beast::error_code error) {
          if (error || !self->streaming_) return;
          char byte = 0;
          const ssize_t n = ::recv(self->stream_.socket().native_handle(),
                                   &byte, 1, MSG_PEEK | MSG_DONTWAIT);
          if (n <= 0) self->Close();
        });
  }

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
