// SPDX-License-Identifier: Apache-2.0
//
// TLS termination for gRPC and HTTP: each protocol gets a plain socket within
// this process.
//
//   accepted socket ─▶ handshake ─▶ ALPN "http/1.1" or none ─▶ HTTP
//                                   ALPN "h2" alone         ─▶ gRPC
//
// A browser offers both and gets HTTP/1.1. TLS 1.2 or newer. The certificate is
// reloaded when its file changes; if the new one cannot be used, that is logged
// and the old one stays. With a client CA, the handshake fails for clients
// without a certificate from it. One thread serves all connections.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "base/status.h"
#include "server/core/caller.h"
#include "server/net/listener.h"

namespace reprise::server {

struct TlsOptions {
  std::string certificate;  // PEM, with the chain; empty: no TLS
  std::string key;
  std::string client_ca;  // empty: clients need no certificate
};

class TlsFront {
 public:
  // Starts the front. The functions get the plain sockets, on the front's
  // thread. INVALID_ARGUMENT names the file that cannot be used.
  static StatusOr<std::unique_ptr<TlsFront>> Start(const TlsOptions& options,
                                                   AdoptSocket to_grpc,
                                                   AdoptSocket to_http);
  TlsFront() = default;
  virtual ~TlsFront() = default;
  TlsFront(const TlsFront&) = delete;
  TlsFront& operator=(const TlsFront&) = delete;

  // Takes over a connected, non-blocking TCP socket. Thread-safe.
  virtual void Adopt(int fd) = 0;

  // Returns who is behind the socket pair with this abstract name, which is what
  // getpeername says of the plain socket: the client's address, and the subject
  // of its certificate if it has one. Nothing if the connection has ended.
  // Thread-safe.
  virtual std::optional<Caller> PeerBehind(const std::string& name) const = 0;

  // Closes all connections and ends the thread.
  virtual void Stop() = 0;
};

// Returns the first name in a PEM certificate that clients may use: a DNS name
// or an address among its alternative names. INVALID_ARGUMENT: not a
// certificate, or it has none.
StatusOr<std::string> NameInCertificate(const std::string& path);

}  // namespace reprise::server
