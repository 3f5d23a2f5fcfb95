// SPDX-License-Identifier: Apache-2.0
//
// The answers of a connection: whole, or as a stream of chunks.
#include <sys/socket.h>

#include <boost/asio/write.hpp>
#include <memory>
#include <utility>

#include "server/net/compress.h"
#include "server/net/http_connection.h"

namespace reprise::server {

void Connection::Respond(HttpResponse response) {
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

void Connection::BeginStream(int status, const HttpHeaders& headers) {
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

void Connection::Write(std::string bytes) {
  if (cancelled_) {
    unsent_ = 0;
    return;
  }
  // May run before BeginStream: asio runs work posted by its own thread from
  // a separate queue, so work of another thread may overtake it.
  chunks_.push_back(std::move(bytes));
  if (streaming_) WriteMore();
}

void Connection::End() {
  if (cancelled_) return;
  ended_ = true;
  if (streaming_) WriteMore();
}

void Connection::OnAnswered(beast::error_code error) {
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

void Connection::WriteMore() {
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

void Connection::OnChunkWritten(beast::error_code error) {
  writing_ = false;
  if (error) {
    Close();
    return;
  }
  WriteMore();
}

void Connection::WatchForClose() {
  stream_.socket().async_wait(
      tcp::socket::wait_read,
      [self = shared_from_this()](beast::error_code error) {
        if (error || !self->streaming_) return;
        char byte = 0;
        const ssize_t n = ::recv(self->stream_.socket().native_handle(), &byte,
                                 1, MSG_PEEK | MSG_DONTWAIT);
        if (n <= 0) self->Close();
      });
}

}  // namespace reprise::server
