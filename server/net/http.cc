// SPDX-License-Identifier: Apache-2.0
#include "server/net/http.h"

#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <boost/asio/dispatch.hpp>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/core.hpp>
#include <boost/beast/http.hpp>
#include <chrono>
#include <deque>
#include <optional>
#include <set>
#include <thread>

#include "base/str_cat.h"
#include "server/log.h"

namespace reprise::server {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = boost::beast::http;
using tcp = asio::ip::tcp;

namespace {

constexpr uint32_t kMaxHeaderBytes = 16 << 10;
// For a request to arrive once begun, an idle connection, a write to a client
// that reads slowly.
constexpr auto kReadTimeout = std::chrono::seconds(60);
constexpr auto kWriteTimeout = std::chrono::seconds(60);

}  // namespace

std::string_view HttpRequest::Header(std::string_view lower_case_name) const {
  for (const auto& [name, value] : headers) {
    if (name == lower_case_name) return value;
  }
  return {};
}

// ---- Connection ----

namespace {

class Connection;

// Connections by address, to close them all. HTTP thread only.
using Connections = std::set<Connection*>;

// Reads one request, lets it be answered, reads the next. Everything but the
// atomics belongs to the HTTP thread.
class Connection : public std::enable_shared_from_this<Connection> {
 public:
  Connection(tcp::socket socket, const HttpHandler& handler,
             Connections& connections)
      : stream_(std::move(socket)),
        handler_(handler),
        connections_(connections) {
    connections_.insert(this);
  }
  ~Connection() { connections_.erase(this); }

  void Read() {
    parser_.emplace();
    parser_->header_limit(kMaxHeaderBytes);
    parser_->body_limit(kMaxHttpBodyBytes);
    stream_.expires_after(kReadTimeout);
    http::async_read(
        stream_, buffer_, *parser_,
        [self = shared_from_this()](beast::error_code error, size_t /*bytes*/) {
          self->OnRead(error);
        });
  }

  void Close() {
    cancelled_ = true;
    beast::error_code ignored;
    stream_.socket().shutdown(tcp::socket::shutdown_both, ignored);
    stream_.close();
  }

  // ---- Answers, on the HTTP thread ----

  void Respond(HttpResponse response) {
    if (cancelled_ || answered_) return;
    answered_ = true;
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
      // A HEAD answer has the length of the body it does not have.
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
    // May come before BeginStream has run: work posted by this thread waits in
    // a queue of its own while that of another thread goes first.
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

  void OnRead(beast::error_code error);

  void OnAnswered(beast::error_code error) {
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
      // Between two events a stream may be silent for as long as it likes.
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

  // A stream's client says nothing more; that its socket becomes readable
  // means that it is gone.
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
  const HttpHandler& handler_;
  Connections& connections_;
  const beast::tcp_stream::executor_type executor_ = stream_.get_executor();
  beast::flat_buffer buffer_;
  std::optional<http::request_parser<http::string_body>> parser_;
  unsigned version_ = 11;  // of the request
  bool head_ = false;
  bool keep_alive_ = true;
  bool answered_ = false;
  bool streaming_ = false;
  bool writing_ = false;
  bool ended_ = false;
  std::deque<std::string> chunks_;
};

// Carries answers from any thread to the connection's.
class Connection::Reply : public HttpReply {
 public:
  explicit Reply(std::shared_ptr<Connection> connection)
      : connection_(std::move(connection)) {}
  // The last owner destroys the connection, and only its own thread may.
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

 private:
  template <typename Work>
  void Run(Work work) {
    // post keeps the order of calls, also of those from the HTTP thread.
    asio::post(connection_->executor(),
               [connection = connection_, work = std::move(work)]() mutable {
                 work(*connection);
               });
  }
  std::shared_ptr<Connection> connection_;
};

void Connection::OnRead(beast::error_code error) {
  if (error == http::error::body_limit || error == http::error::header_limit) {
    keep_alive_ = false;
    Respond({.status = error == http::error::body_limit ? 413 : 431,
             .headers = {{"Content-Type", "text/plain; charset=utf-8"}},
             .body = "the request is too large\n",
             .view = {}});
    return;
  }
  if (error) {
    // End of stream, timeout, or bytes that are not HTTP.
    Close();
    return;
  }
  stream_.expires_never();
  auto message = parser_->release();
  version_ = message.version();
  head_ = message.method() == http::verb::head;
  keep_alive_ = message.keep_alive();
  unsent_ = 0;

  HttpRequest request;
  request.method = std::string(message.method_string());
  std::string target(message.target());
  if (const size_t mark = target.find('?'); mark != std::string::npos) {
    request.query = target.substr(mark + 1);
    target.resize(mark);
  }
  request.path = std::move(target);
  for (const auto& field : message) {
    std::string name(field.name_string());
    for (char& c : name) {
      if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
    }
    request.headers.emplace_back(std::move(name), std::string(field.value()));
  }
  request.body = std::move(message.body());

  handler_(std::move(request), std::make_shared<Reply>(shared_from_this()));
}

}  // namespace

// ---- HttpServer ----

class HttpServer::Impl {
 public:
  explicit Impl(HttpHandler handler)
      : handler_(std::move(handler)),
        work_(asio::make_work_guard(context_)),
        thread_([this] { context_.run(); }) {}
  ~Impl() { Stop(); }

  void Adopt(int fd) {
    asio::post(context_, [this, fd] {
      sockaddr_storage address{};
      socklen_t size = sizeof(address);
      beast::error_code error;
      tcp::socket socket(context_);
      (void)::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size);
      socket.assign(address.ss_family == AF_INET6 ? tcp::v6() : tcp::v4(), fd,
                    error);
      if (error) {
        ::close(fd);
        return;
      }
      std::make_shared<Connection>(std::move(socket), handler_, connections_)
          ->Read();
    });
  }

  void Stop() {
    if (!thread_.joinable()) return;
    asio::post(context_, [this] {
      // Closing may destroy, and so remove, a connection.
      std::vector<std::shared_ptr<Connection>> open;
      for (Connection* connection : connections_) {
        if (auto held = connection->weak_from_this().lock()) {
          open.push_back(std::move(held));
        }
      }
      for (const auto& connection : open) connection->Close();
      work_.reset();
    });
    thread_.join();
  }

 private:
  const HttpHandler handler_;
  Connections connections_;
  asio::io_context context_{1};
  asio::executor_work_guard<asio::io_context::executor_type> work_;
  std::thread thread_;
};

HttpServer::HttpServer(HttpHandler handler)
    : impl_(std::make_unique<Impl>(std::move(handler))) {}
HttpServer::~HttpServer() = default;
void HttpServer::Adopt(int fd) { impl_->Adopt(fd); }
void HttpServer::Stop() { impl_->Stop(); }

}  // namespace reprise::server
