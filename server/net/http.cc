// SPDX-License-Identifier: Apache-2.0
#include "server/net/http.h"

#include <algorithm>
#include <charconv>

#include "server/net/event_loop.h"
#include "server/net/http_connection.h"

namespace reprise::server {
namespace {

// Decodes a URL component: "%41+b" -> "A b".
std::string Decoded(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    unsigned value = 0;
    if (text[i] == '%' && i + 2 < text.size() &&
        std::from_chars(&text[i + 1], &text[i + 3], value, 16).ptr ==
            &text[i + 3]) {
      out += static_cast<char>(value);
      i += 2;
    } else {
      out += text[i] == '+' ? ' ' : text[i];
    }
  }
  return out;
}

}  // namespace

std::string_view HttpRequest::Header(std::string_view lower_case_name) const {
  for (const auto& [name, value] : headers) {
    if (name == lower_case_name) return value;
  }
  return {};
}

class HttpServer::Impl {
 public:
  Impl(HttpHandler handler, HttpUploadOpener uploads)
      : handler_(std::move(handler)), uploads_(std::move(uploads)) {}

  void Adopt(int fd, bool tls) {
    loop_.Adopt(fd, [this, tls](tcp::socket socket) {
      std::make_shared<Connection>(std::move(socket), tls, handler_, uploads_,
                                   bodies_, loop_.open())
          ->Read();
    });
  }

  uint64_t BodiesEmptiedFrom() { return bodies_.EmptiedFrom(); }

  void Stop() { loop_.Stop(); }

 private:
  const HttpHandler handler_;
  const HttpUploadOpener uploads_;
  ByteShare bodies_{kMaxHttpBodiesBytes};
  EventLoop<Connection> loop_{kMaxHttpConnections};
};

HttpServer::HttpServer(HttpHandler handler, HttpUploadOpener uploads)
    : impl_(std::make_unique<Impl>(std::move(handler), std::move(uploads))) {}
HttpServer::~HttpServer() = default;
void HttpServer::Adopt(int fd, bool tls) { impl_->Adopt(fd, tls); }
uint64_t HttpServer::BodiesEmptiedFrom() { return impl_->BodiesEmptiedFrom(); }
void HttpServer::Stop() { impl_->Stop(); }

std::string QueryValue(std::string_view query, std::string_view name) {
  std::string value;
  while (!query.empty()) {
    const std::string_view pair = query.substr(0, query.find('&'));
    query.remove_prefix(std::min(query.size(), pair.size() + 1));
    if (pair.size() > name.size() && pair.starts_with(name) &&
        pair[name.size()] == '=') {
      value = Decoded(pair.substr(name.size() + 1));
    }
  }
  return value;
}

}  // namespace reprise::server
