// SPDX-License-Identifier: Apache-2.0
//
// The answers of a connection: whole, or as a stream of chunks.
#include <sys/socket.h>
#include <zlib.h>

#include <algorithm>
#include <array>
#include <boost/asio/write.hpp>
#include <memory>
#include <utility>

#include "server/net/http.h"
#include "server/net/http_connection.h"

namespace reprise::server {
namespace {

constexpr size_t kLeastBytes = 1024;

bool IsWorthIt(std::string_view type) {
  constexpr std::array<std::string_view, 4> kTypes = {
      "text/", "application/json", "application/proto", "image/svg"};
  return std::any_of(
      kTypes.begin(), kTypes.end(),
      [&](std::string_view prefix) { return type.starts_with(prefix); });
}

// Runs on the only HTTP thread: half a megabyte takes about 5 ms. The default
// level would take three times as long for a tenth fewer bytes.
constexpr int kLevel = 3;
constexpr int kGzipWindow = 15 + 16;

std::optional<std::string> Gzip(std::string_view bytes) {
  z_stream stream{};
  if (deflateInit2(&stream, kLevel, Z_DEFLATED, kGzipWindow, 8,
                   Z_DEFAULT_STRATEGY) != Z_OK) {
    return std::nullopt;
  }
  std::string out(deflateBound(&stream, bytes.size()), '\0');
  stream.next_in =
      reinterpret_cast<Bytef*>(const_cast<char*>(bytes.data()));  // only read
  stream.avail_in = static_cast<uInt>(bytes.size());
  stream.next_out = reinterpret_cast<Bytef*>(out.data());
  stream.avail_out = static_cast<uInt>(out.size());
  const int ended = deflate(&stream, Z_FINISH);
  out.resize(stream.total_out);
  deflateEnd(&stream);
  if (ended != Z_STREAM_END) return std::nullopt;
  return out;
}

}  // namespace

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

bool Accepts(std::string_view accept_encoding, std::string_view coding) {
  for (const auto& [name, parameters] :
       http::ext_list({accept_encoding.data(), accept_encoding.size()})) {
    if (!beast::iequals(name, {coding.data(), coding.size()})) continue;
    for (const auto& [key, value] : parameters) {
      if (key == "q") return value.find_first_not_of("0.") != value.npos;
    }
    return true;
  }
  return false;
}

void Compress(HttpResponse& response) {
  const std::string_view bytes =
      response.view.empty() ? std::string_view(response.body) : response.view;
  std::string_view type;
  for (const auto& [name, value] : response.headers) {
    if (name == "Content-Encoding") return;
    if (name == "Content-Type") type = value;
  }
  if (bytes.size() < kLeastBytes || !IsWorthIt(type)) return;
  std::optional<std::string> fewer = Gzip(bytes);
  if (!fewer || fewer->size() >= bytes.size()) return;
  response.body = *std::move(fewer);
  response.view = {};
  response.headers.emplace_back("Content-Encoding", "gzip");
  response.headers.emplace_back("Vary", "Accept-Encoding");
}

}  // namespace reprise::server
