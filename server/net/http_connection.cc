// SPDX-License-Identifier: Apache-2.0
#include "server/net/http_connection.h"

#include <boost/asio/post.hpp>
#include <boost/asio/write.hpp>
#include <new>

#include "server/core/log.h"
#include "server/net/address.h"
#include "server/net/http.h"

namespace reprise::server {

namespace {

constexpr size_t kPartBytes = 256 << 10;
// Limits for reading a refused body before the socket is closed.
constexpr size_t kLingerBytes = 64 << 20;
constexpr size_t kLingerPartBytes = 16 << 10;
constexpr auto kLingerTime = std::chrono::seconds(5);
constexpr char kNoMemory[] =
    "the server has not enough memory for this request; try again later\n";
constexpr std::string_view kContinue = "HTTP/1.1 100 Continue\r\n\r\n";

}  // namespace

// ---- Answers from any thread ----

// Passes answers from any thread to the connection's thread.
class Connection::Reply : public HttpReply {
 public:
  explicit Reply(std::shared_ptr<Connection> connection)
      : connection_(std::move(connection)) {}
  // The last owner destroys the connection, which only its own thread may do.
  ~Reply() override {
    auto executor = connection_->executor();
    asio::post(executor, [last = std::move(connection_)] {});
  }

  void Respond(HttpResponse response) override {
    Run([response = std::move(response)](Connection& c) mutable {
      c.Respond(std::move(response));
    });
  }
  void BeginStream(int status, HttpHeaders headers) override {
    Run([status, headers = std::move(headers)](Connection& c) {
      c.BeginStream(status, headers);
    });
  }
  void Write(std::string bytes) override {
    ++connection_->unsent_;
    Run([bytes = std::move(bytes)](Connection& c) mutable {
      c.Write(std::move(bytes));
    });
  }
  void End() override {
    Run([](Connection& c) { c.End(); });
  }
  size_t unsent() const override { return connection_->unsent_; }
  bool cancelled() const override { return connection_->cancelled_; }

  template <typename Work>
  void Run(Work work) {
    // post keeps the order of calls, including those from the HTTP thread.
    asio::post(connection_->executor(),
               [connection = connection_, work = std::move(work)]() mutable {
                 work(*connection);
               });
  }

 private:
  std::shared_ptr<Connection> connection_;
};

// ---- Requests ----

HttpRequest Connection::RequestOf(const http::request_header<>& head) {
  version_ = head.version();
  head_ = head.method() == http::verb::head;
  HttpRequest request;
  request.tls = tls_;
  request.peer = PeerOf(stream_.socket().native_handle());
  request.method = std::string(head.method_string());
  std::string target(head.target());
  if (const size_t mark = target.find('?'); mark != std::string::npos) {
    request.query = target.substr(mark + 1);
    target.resize(mark);
  }
  request.path = std::move(target);
  const auto accepted = head[http::field::accept_encoding];
  accepts_gzip_ = Accepts({accepted.data(), accepted.size()}, "gzip");
  for (const auto& field : head) {
    std::string name(field.name_string());
    for (char& c : name) {
      if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
    }
    request.headers.emplace_back(std::move(name), std::string(field.value()));
  }
  return request;
}

void Connection::Read() {
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

void Connection::Close() {
  cancelled_ = true;
  ForgetBody();
  beast::error_code ignored;
  stream_.socket().shutdown(tcp::socket::shutdown_both, ignored);
  stream_.close();
}

void Connection::OnHead(beast::error_code error) {
  if (error == http::error::header_limit) {
    Refuse(431, "the request is too large\n");
    return;
  }
  if (error) {
    // End of stream, timeout, or bytes that are not HTTP.
    Close();
    return;
  }
  unsent_ = 0;
  const auto& head = head_parser_->get();
  keep_alive_ = head.keep_alive();
  if (uploads_) {
    HttpUploadStart start = uploads_(RequestOf(head));
    if (start.refused) {
      Refuse(*std::move(start.refused));
      return;
    }
    if (start.upload) {
      BeginUpload(std::move(start));
      return;
    }
  }
  if (head_parser_->content_length().value_or(0) > kMaxHttpBodyBytes) {
    Refuse(413, "the request is too large\n");
    return;
  }
  if (!ExpectBody()) {
    Refuse(503, "too much is being sent at once; try again\n");
    return;
  }
  parser_.emplace(std::move(*head_parser_));
  parser_->body_limit(kMaxHttpBodyBytes);
  try {
    parser_->get().body().reserve(body_bytes_);
  } catch (const std::bad_alloc&) {
    LogError("out_of_memory", "out of memory; a request is given up");
    Refuse(503, kNoMemory);
    return;
  }
  http::async_read(
      stream_, buffer_, *parser_,
      [self = shared_from_this()](beast::error_code error, size_t /*bytes*/) {
        self->OnRead(error);
      });
}

bool Connection::ExpectBody() {
  // A body of unknown length may have any size up to the limit.
  const uint64_t bytes = head_parser_->chunked()
                             ? kMaxHttpBodyBytes
                             : head_parser_->content_length().value_or(0);
  if (!bodies_.Take(bytes)) return false;
  body_bytes_ = bytes;
  return true;
}

void Connection::OnRead(beast::error_code error) {
  if (error == http::error::body_limit) {
    Refuse(413, "the request is too large\n");
    return;
  }
  if (error) {
    Close();
    return;
  }
  stream_.expires_never();
  auto message = parser_->release();
  try {
    HttpRequest request = RequestOf(message);
    request.body = std::move(message.body());
    handler_(std::move(request), std::make_shared<Reply>(shared_from_this()));
  } catch (const std::bad_alloc&) {
    LogError("out_of_memory", "out of memory; a request is given up");
    if (!answered_) Refuse(503, kNoMemory);
  }
}

void Connection::Refuse(int status, const char* why) {
  Refuse({.status = status,
          .headers = {{"Content-Type", "text/plain; charset=utf-8"}},
          .body = why});
}

void Connection::Refuse(HttpResponse response) {
  keep_alive_ = false;
  unread_ = true;
  upload_.reset();
  Respond(std::move(response));
}

void Connection::Linger() {
  beast::error_code ignored;
  stream_.socket().shutdown(tcp::socket::shutdown_send, ignored);
  if (lingered_bytes_ == 0) stream_.expires_after(kLingerTime);
  part_.resize(kLingerPartBytes);
  stream_.async_read_some(
      asio::buffer(part_),
      [self = shared_from_this()](beast::error_code error, size_t bytes) {
        self->lingered_bytes_ += bytes;
        if (error || self->lingered_bytes_ > kLingerBytes) {
          self->Close();
        } else {
          self->Linger();
        }
      });
}

void Connection::BeginUpload(HttpUploadStart start) {
  upload_ = std::move(start.upload);
  if (head_parser_->content_length().value_or(0) > start.max_bytes) {
    Refuse(upload_->TooLarge());
    return;
  }
  const bool asks =
      beast::iequals(head_parser_->get()[http::field::expect], "100-continue");
  part_parser_.emplace(std::move(*head_parser_));
  part_parser_->body_limit(start.max_bytes);
  if (!asks) {
    ReadPart();
    return;
  }
  asio::async_write(
      stream_, asio::buffer(kContinue),
      [self = shared_from_this()](beast::error_code error, size_t) {
        if (error) {
          self->Close();
        } else {
          self->ReadPart();
        }
      });
}

void Connection::ReadPart() {
  part_.resize(kPartBytes);
  part_parser_->get().body().data = part_.data();
  part_parser_->get().body().size = part_.size();
  stream_.expires_after(kReadTimeout);
  http::async_read(
      stream_, buffer_, *part_parser_,
      [self = shared_from_this()](beast::error_code error, size_t /*bytes*/) {
        self->OnPart(error);
      });
}

void Connection::OnPart(beast::error_code error) {
  if (error == http::error::body_limit) {
    Refuse(upload_->TooLarge());
    return;
  }
  // need_buffer means that the buffer is full: a complete part.
  if (error == http::error::need_buffer) error = {};
  if (error) {
    upload_.reset();
    Close();
    return;
  }
  stream_.expires_never();
  part_.resize(part_.size() - part_parser_->get().body().size);
  const bool last = part_parser_->is_done();
  auto reply = std::make_shared<Reply>(shared_from_this());
  // Return from the upload's thread to this one.
  upload_->Take(
      std::exchange(part_, {}), [reply, last](std::optional<HttpResponse> no) {
        reply->Run([no = std::move(no), last](Connection& c) mutable {
          if (c.cancelled_ || c.upload_ == nullptr) return;
          if (no) {
            c.unread_ = !last;
            c.upload_.reset();
            c.keep_alive_ = false;
            c.Respond(*std::move(no));
          } else if (last) {
            const auto upload = std::move(c.upload_);
            upload->Finish(std::make_shared<Reply>(c.shared_from_this()));
          } else {
            c.ReadPart();
          }
        });
      });
}

}  // namespace reprise::server
