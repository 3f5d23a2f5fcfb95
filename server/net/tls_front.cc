// SPDX-License-Identifier: Apache-2.0
#include "server/net/tls_front.h"

#include <arpa/inet.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/local/stream_protocol.hpp>
#include <boost/asio/ssl.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/write.hpp>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <map>
#include <mutex>
#include <set>

#include "base/str_cat.h"
#include "server/core/log.h"
#include "server/net/address.h"
#include "server/net/event_loop.h"

namespace reprise::server {

namespace {

namespace asio = boost::asio;
namespace ssl = boost::asio::ssl;
using asio::ip::tcp;
using Plain = asio::local::stream_protocol;
using Error = boost::system::error_code;

constexpr auto kHandshakeTime = std::chrono::seconds(10);
constexpr size_t kMaxConnections = 1024;
constexpr size_t kBufferBytes = 16 << 10;
constexpr std::string_view kHttp = "http/1.1";
constexpr std::string_view kHttp2 = "h2";

// Chooses from the protocols a client offers: names, each preceded by its
// length.
int ChooseProtocol(SSL* /*connection*/, const unsigned char** chosen,
                   unsigned char* chosen_size, const unsigned char* offered,
                   unsigned offered_size, void* /*context*/) {
  for (const std::string_view wanted : {kHttp, kHttp2}) {
    for (unsigned at = 0; at < offered_size; at += 1u + offered[at]) {
      const unsigned size = offered[at];
      if (at + 1 + size > offered_size) return SSL_TLSEXT_ERR_ALERT_FATAL;
      const std::string_view name(
          reinterpret_cast<const char*>(offered + at + 1), size);
      if (name != wanted) continue;
      *chosen = offered + at + 1;
      *chosen_size = static_cast<unsigned char>(size);
      return SSL_TLSEXT_ERR_OK;
    }
  }
  return SSL_TLSEXT_ERR_ALERT_FATAL;
}

StatusOr<std::shared_ptr<ssl::context>> MakeContext(const TlsOptions& options) {
  auto context = std::make_shared<ssl::context>(ssl::context::tls_server);
  SSL_CTX* const native = context->native_handle();
  SSL_CTX_set_min_proto_version(native, TLS1_2_VERSION);
  SSL_CTX_set_options(native, SSL_OP_NO_RENEGOTIATION);
  SSL_CTX_set_alpn_select_cb(native, ChooseProtocol, nullptr);
  Error error;
  context->use_certificate_chain_file(options.certificate, error);
  if (error) {
    return InvalidArgument(StrCat("--tls-cert: ", options.certificate,
                                  ": is no certificate in PEM that can be "
                                  "read: ",
                                  error.message()));
  }
  context->use_private_key_file(options.key, ssl::context::pem, error);
  if (error || SSL_CTX_check_private_key(native) != 1) {
    return InvalidArgument(StrCat("--tls-key: ", options.key,
                                  ": is not the key in PEM of ",
                                  options.certificate));
  }
  if (!options.client_ca.empty()) {
    context->load_verify_file(options.client_ca, error);
    if (error) {
      return InvalidArgument(StrCat("--client-ca: ", options.client_ca,
                                    ": is no certificate in PEM that can be "
                                    "read: ",
                                    error.message()));
    }
    context->set_verify_mode(ssl::verify_peer |
                             ssl::verify_fail_if_no_peer_cert);
  }
  return context;
}

// Returns when a file was last written, plus its size and inode, to detect
// changes in quick succession.
std::array<int64_t, 4> StampOf(const std::string& path) {
  struct stat info {};
  if (::stat(path.c_str(), &info) != 0) return {};
  return {info.st_mtim.tv_sec, info.st_mtim.tv_nsec,
          static_cast<int64_t>(info.st_size),
          static_cast<int64_t>(info.st_ino)};
}

// ---- Clients ----

// Who is behind each socket pair, by its abstract name.
class Clients {
 public:
  void Add(const std::string& name, Caller caller) {
    const std::lock_guard lock(mutex_);
    clients_[name] = std::move(caller);
  }
  void Remove(const std::string& name) {
    const std::lock_guard lock(mutex_);
    clients_.erase(name);
  }
  std::optional<Caller> Find(const std::string& name) const {
    const std::lock_guard lock(mutex_);
    const auto found = clients_.find(name);
    if (found == clients_.end()) return std::nullopt;
    return found->second;
  }

 private:
  mutable std::mutex mutex_;
  std::map<std::string, Caller> clients_;
};

// Gives one end of a socket pair a free abstract name, chosen by the kernel, so
// that the other end can tell which connection it belongs to. Returns the name;
// empty if there is none.
std::string NameEnd(int fd) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (::bind(fd, reinterpret_cast<sockaddr*>(&address),
             sizeof(address.sun_family)) != 0) {
    return "";
  }
  socklen_t size = sizeof(address);
  constexpr size_t kPath = offsetof(sockaddr_un, sun_path);
  if (::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size) != 0 ||
      size <= kPath + 1) {
    return "";
  }
  return {&address.sun_path[1], size - kPath - 1};
}

// Returns "certificate CN=node7,O=lab"; empty without a client's certificate.
std::string SubjectOf(SSL* connection) {
  const std::unique_ptr<X509, void (*)(X509*)> certificate(
      SSL_get1_peer_certificate(connection), X509_free);
  const std::unique_ptr<BIO, int (*)(BIO*)> text(BIO_new(BIO_s_mem()),
                                                 BIO_free);
  if (!certificate || !text) return "";
  X509_NAME_print_ex(text.get(), X509_get_subject_name(certificate.get()), 0,
                     XN_FLAG_RFC2253);
  char* data = nullptr;
  const long size = BIO_get_mem_data(text.get(), &data);
  return StrCat("certificate ",
                std::string_view(data, static_cast<size_t>(size)));
}

class Bridge;
using Bridges = std::set<Bridge*>;

// One connection: TLS on one side, a plain socket on the other. Runs only on
// the front's thread.
class Bridge : public std::enable_shared_from_this<Bridge> {
 public:
  Bridge(tcp::socket socket, std::shared_ptr<ssl::context> context,
         asio::io_context& io, Bridges& bridges, Clients& clients)
      : context_(std::move(context)),
        tls_(std::move(socket), *context_),
        plain_(io),
        timer_(io),
        bridges_(bridges),
        clients_(clients) {
    bridges_.insert(this);
  }
  ~Bridge() {
    bridges_.erase(this);
    if (!name_.empty()) clients_.Remove(name_);
  }

  void Start(const AdoptSocket& to_grpc, const AdoptSocket& to_http) {
    CloseLater();
    tls_.async_handshake(
        ssl::stream_base::server,
        [self = shared_from_this(), &to_grpc, &to_http](Error error) {
          self->timer_.cancel();
          if (error) {
            self->Close();
          } else {
            self->Connect(to_grpc, to_http);
          }
        });
  }

  void Close() {
    Error ignored;
    timer_.cancel();
    tls_.lowest_layer().close(ignored);
    plain_.close(ignored);
  }

 private:
  using Buffer = std::array<char, kBufferBytes>;

  void Connect(const AdoptSocket& to_grpc, const AdoptSocket& to_http) {
    int ends[2];
    if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0,
                     ends) != 0) {
      LogWarning("no_descriptors",
                 "out of file descriptors; a connection is closed");
      Close();
      return;
    }
    Error error;
    plain_.assign(Plain(), ends[0], error);
    if (error) {
      ::close(ends[0]);
      ::close(ends[1]);
      Close();
      return;
    }
    name_ = NameEnd(ends[0]);
    if (!name_.empty()) {
      std::string who = SubjectOf(tls_.native_handle());
      std::string from = PeerOf(tls_.lowest_layer().native_handle());
      from.erase(0, from.find(':') + 1);
      clients_.Add(name_, {.who = who.empty() ? "token" : std::move(who),
                           .peer = StrCat(from, " over TLS")});
    }
    const unsigned char* name = nullptr;
    unsigned size = 0;
    SSL_get0_alpn_selected(tls_.native_handle(), &name, &size);
    const bool grpc =
        std::string_view(reinterpret_cast<const char*>(name), size) == kHttp2;
    (grpc ? to_grpc : to_http)(ends[1]);
    Pass(tls_, plain_, from_client_, [this] {
      // Nothing more comes from the client; answers may still be on their way.
      Error ignored;
      plain_.shutdown(Plain::socket::shutdown_send, ignored);
    });
    Pass(plain_, tls_, to_client_, [this] { End(); });
  }

  // Passes on what comes on one side, until it ends.
  template <typename From, typename To, typename AtEnd>
  void Pass(From& from, To& to, Buffer& buffer, AtEnd at_end) {
    from.async_read_some(
        asio::buffer(buffer), [self = shared_from_this(), &from, &to, &buffer,
                               at_end](Error error, size_t bytes) {
          if (error) {
            at_end();
            return;
          }
          asio::async_write(
              to, asio::buffer(buffer, bytes),
              [self, &from, &to, &buffer, at_end](Error failed, size_t) {
                if (failed) {
                  self->Close();
                } else {
                  self->Pass(from, to, buffer, at_end);
                }
              });
        });
  }

  // Closes all unless the timer is cancelled before.
  void CloseLater() {
    timer_.expires_after(kHandshakeTime);
    timer_.async_wait([weak = weak_from_this()](Error error) {
      const auto self = weak.lock();
      if (self && !error) self->Close();
    });
  }

  // The server has closed its side: closes the client's side too.
  void End() {
    CloseLater();
    tls_.async_shutdown([self = shared_from_this()](Error) { self->Close(); });
  }

  const std::shared_ptr<ssl::context> context_;  // outlives its stream
  ssl::stream<tcp::socket> tls_;
  Plain::socket plain_;
  asio::steady_timer timer_;
  Bridges& bridges_;
  Clients& clients_;
  std::string name_;  // of the plain socket; empty: none
  Buffer from_client_{};
  Buffer to_client_{};
};

class RunningFront final : public TlsFront {
 public:
  RunningFront(const TlsOptions& options, std::shared_ptr<ssl::context> context,
               AdoptSocket to_grpc, AdoptSocket to_http)
      : options_(options),
        to_grpc_(std::move(to_grpc)),
        to_http_(std::move(to_http)),
        context_(std::move(context)),
        certificate_(StampOf(options.certificate)),
        key_(StampOf(options.key)) {}

  void Adopt(int fd) override {
    loop_.Adopt(fd, [this](tcp::socket socket) {
      ReadAgain();
      std::make_shared<Bridge>(std::move(socket), context_, loop_.io(),
                               loop_.open(), clients_)
          ->Start(to_grpc_, to_http_);
    });
  }

  std::optional<Caller> PeerBehind(const std::string& name) const override {
    return clients_.Find(name);
  }

  void Stop() override { loop_.Stop(); }

 private:
  void ReadAgain() {
    const auto certificate = StampOf(options_.certificate);
    const auto key = StampOf(options_.key);
    if (certificate == certificate_ && key == key_) return;
    certificate_ = certificate;
    key_ = key;
    StatusOr<std::shared_ptr<ssl::context>> made = MakeContext(options_);
    if (!made.ok()) {
      LogWarning("certificate_refused",
                 StrCat(made.status().message(),
                        "; the certificate of before stays in use"));
      return;
    }
    context_ = *std::move(made);
    LogInfo("certificate_read", StrCat(options_.certificate, ": read again"),
            {{"file", options_.certificate}});
  }

  const TlsOptions options_;
  const AdoptSocket to_grpc_;
  const AdoptSocket to_http_;
  std::shared_ptr<ssl::context> context_;
  std::array<int64_t, 4> certificate_;
  std::array<int64_t, 4> key_;
  Clients clients_;
  EventLoop<Bridge> loop_{kMaxConnections};
};

}  // namespace

StatusOr<std::unique_ptr<TlsFront>> TlsFront::Start(const TlsOptions& options,
                                                    AdoptSocket to_grpc,
                                                    AdoptSocket to_http) {
  ASSIGN_OR_RETURN(auto context, MakeContext(options));
  return std::unique_ptr<TlsFront>(new RunningFront(
      options, std::move(context), std::move(to_grpc), std::move(to_http)));
}

StatusOr<std::string> NameInCertificate(const std::string& path) {
  const std::unique_ptr<BIO, int (*)(BIO*)> file(
      BIO_new_file(path.c_str(), "r"), BIO_free);
  if (!file) {
    return InvalidArgument(StrCat(path, ": cannot be read: ", strerror(errno)));
  }
  const std::unique_ptr<X509, void (*)(X509*)> certificate(
      PEM_read_bio_X509(file.get(), nullptr, nullptr, nullptr), X509_free);
  if (!certificate) {
    return InvalidArgument(StrCat(path, ": is no certificate in PEM"));
  }
  const std::unique_ptr<GENERAL_NAMES, void (*)(GENERAL_NAMES*)> names(
      static_cast<GENERAL_NAMES*>(X509_get_ext_d2i(
          certificate.get(), NID_subject_alt_name, nullptr, nullptr)),
      GENERAL_NAMES_free);
  const int count = names ? sk_GENERAL_NAME_num(names.get()) : 0;
  for (int i = 0; i < count; ++i) {
    const GENERAL_NAME* name = sk_GENERAL_NAME_value(names.get(), i);
    if (name->type == GEN_DNS) {
      const ASN1_IA5STRING* text = name->d.dNSName;
      return std::string(
          reinterpret_cast<const char*>(ASN1_STRING_get0_data(text)),
          static_cast<size_t>(ASN1_STRING_length(text)));
    }
    if (name->type == GEN_IPADD) {
      const ASN1_OCTET_STRING* bytes = name->d.iPAddress;
      char text[INET6_ADDRSTRLEN];
      const int family = ASN1_STRING_length(bytes) == 4 ? AF_INET : AF_INET6;
      if (inet_ntop(family, ASN1_STRING_get0_data(bytes), text, sizeof(text)) !=
          nullptr) {
        return std::string(text);
      }
    }
  }
  return InvalidArgument(
      StrCat("--tls-cert: ", path,
             ": names no host (subjectAltName), so no client can check it"));
}

}  // namespace reprise::server
