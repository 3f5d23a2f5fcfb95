// SPDX-License-Identifier: Apache-2.0
#include "server/net/http.h"

#include <sys/socket.h>
#include <unistd.h>

#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <exception>
#include <thread>

#include "base/str_cat.h"
#include "server/core/log.h"
#include "server/net/http_connection.h"

namespace reprise::server {

std::string_view HttpRequest::Header(std::string_view lower_case_name) const {
  for (const auto& [name, value] : headers) {
    if (name == lower_case_name) return value;
  }
  return {};
}

// ---- HttpServer ----

class HttpServer::Impl {
 public:
  Impl(HttpHandler handler, HttpUploadOpener uploads)
      : handler_(std::move(handler)),
        uploads_(std::move(uploads)),
        work_(asio::make_work_guard(context_)) {
    // Creates the event loop's descriptors now: later there may be none left.
    beast::error_code ignored;
    tcp::socket first(context_);
    first.open(tcp::v4(), ignored);
    thread_ = std::thread([this] { Loop(); });
  }
  ~Impl() { Stop(); }

  void Adopt(int fd, bool tls) {
    asio::post(context_, [this, fd, tls] {
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
      // Returning closes the socket.
      if (connections_.size() >= kMaxHttpConnections) return;
      std::make_shared<Connection>(std::move(socket), tls, handler_, uploads_,
                                   bodies_, connections_)
          ->Read();
    });
  }

  uint64_t BodiesEmptiedFrom() { return bodies_.EmptiedFrom(); }

  void Stop() {
    if (!thread_.joinable()) return;
    asio::post(context_, [this] {
      // Closing a connection may destroy it, which removes it from the set.
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
  // If a request cannot get memory or a descriptor, neither other requests nor
  // the process may end.
  void Loop() {
    while (true) {
      try {
        context_.run();
        return;
      } catch (const std::exception& error) {
        LogError("connection_failed",
                 StrCat("a connection failed: ", error.what()));
      }
    }
  }

  const HttpHandler handler_;
  const HttpUploadOpener uploads_;
  ByteShare bodies_{kMaxHttpBodiesBytes};
  Connections connections_;
  asio::io_context context_{1};
  asio::executor_work_guard<asio::io_context::executor_type> work_;
  std::thread thread_;
};

HttpServer::HttpServer(HttpHandler handler, HttpUploadOpener uploads)
    : impl_(std::make_unique<Impl>(std::move(handler), std::move(uploads))) {}
HttpServer::~HttpServer() = default;
void HttpServer::Adopt(int fd, bool tls) { impl_->Adopt(fd, tls); }
uint64_t HttpServer::BodiesEmptiedFrom() { return impl_->BodiesEmptiedFrom(); }
void HttpServer::Stop() { impl_->Stop(); }

}  // namespace reprise::server
