// SPDX-License-Identifier: Apache-2.0
//
// TLS in front of gRPC and HTTP: speaks it with the client, and hands each
// protocol a plain socket of this process.
//
//   accepted socket ─▶ handshake ─▶ ALPN "http/1.1" or none ─▶ HTTP
//                                   ALPN "h2" alone         ─▶ gRPC
//
// A browser offers both and gets HTTP/1.1. TLS 1.2 or newer. The certificate is
// read again when its file has changed; one that cannot be used is logged, and
// the one of before goes on. With a client CA, clients without a certificate of
// it end in the handshake. One thread for all connections.
#pragma once

#include <memory>
#include <string>

#include "base/status.h"
#include "server/net/listener.h"

namespace reprise::server {

struct TlsOptions {
  std::string certificate;  // PEM, with the chain; empty: no TLS
  std::string key;
  std::string client_ca;  // empty: clients need no certificate
};

class TlsFront {
 public:
  // Takes the plain sockets, on the thread of the front. INVALID_ARGUMENT names
  // the file that cannot be used.
  static StatusOr<std::unique_ptr<TlsFront>> Start(const TlsOptions& options,
                                                   AdoptSocket to_grpc,
                                                   AdoptSocket to_http);
  ~TlsFront();

  // Takes over a connected, non-blocking TCP socket. Any thread.
  void Adopt(int fd);

  // Closes all connections and ends the thread.
  void Stop();

 private:
  class Impl;
  explicit TlsFront(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// The first name of a PEM certificate that clients may ask for: a DNS name or
// an address of its alternative names. INVALID_ARGUMENT: not a certificate, or
// it has none.
StatusOr<std::string> NameInCertificate(const std::string& path);

}  // namespace reprise::server
