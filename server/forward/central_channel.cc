// SPDX-License-Identifier: Apache-2.0
#include "server/forward/central_channel.h"

#include <grpcpp/create_channel.h>
#include <grpcpp/security/credentials.h>
#include <grpcpp/security/tls_certificate_provider.h>
#include <grpcpp/security/tls_credentials_options.h>
#include <openssl/ssl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <fstream>
#include <map>
#include <memory>
#include <vector>

#include "base/str_cat.h"
#include "base/tcp_sockets.h"
#include "server/net/address.h"

namespace reprise::server {

namespace {

// How often certificates are looked at, in seconds.
constexpr unsigned kReadAgain = 10;
constexpr size_t kMostToken = 4096;

// Returns the token in a file, or "" if there is none that a header can carry. A
// pipe is not waited for.
std::string TokenIn(const std::string& path) {
  struct stat info {};
  if (::stat(path.c_str(), &info) != 0 || !S_ISREG(info.st_mode)) return "";
  std::ifstream file(path);
  std::string token;
  std::getline(file, token);
  const bool fits = token.size() <= kMostToken &&
                    std::all_of(token.begin(), token.end(), [](char c) {
                      return std::isgraph(static_cast<unsigned char>(c)) != 0;
                    });
  return fits ? token : std::string();
}

// Returns whether the token may be sent to whoever listens at the centre's
// address.
Status CheckCentre(const ForwardOptions& options) {
  if (!options.ca.empty()) return OkStatus();
  std::vector<uint32_t> trusted = {0, ::geteuid()};
  struct stat file {};
  if (::stat(options.token_file.c_str(), &file) == 0) {
    trusted.push_back(file.st_uid);
  }
  return CheckListener(options.target, trusted);
}

// Adds the token to every call. Without TLS, which shows who the centre is, only
// where a process of the token's owner, of this user or of root listens; else
// the call fails before anything is sent.
class TokenPlugin final : public grpc::MetadataCredentialsPlugin {
 public:
  explicit TokenPlugin(const ForwardOptions& options) : options_(options) {}

  grpc::Status GetMetadata(
      grpc::string_ref /*url*/, grpc::string_ref /*method*/,
      const grpc::AuthContext& /*channel*/,
      std::multimap<grpc::string, grpc::string>* metadata) override {
    if (const Status centre = CheckCentre(options_); !centre.ok()) {
      return {static_cast<grpc::StatusCode>(centre.code()), centre.message()};
    }
    metadata->emplace("authorization",
                      StrCat("Bearer ", TokenIn(options_.token_file)));
    return grpc::Status::OK;
  }

 private:
  const ForwardOptions options_;
};

bool OnThisMachine(const std::string& target) {
  const StatusOr<Address> address = ParseAddress("--forward-to", target);
  return address.ok() && IsLoopback(*address);
}

Status CannotUse(const char* flag, const std::string& path, const char* what) {
  return InvalidArgument(StrCat(flag, ": ", path, " ", what));
}

// gRPC itself would only say later that no connection comes about.
Status CheckFiles(const ForwardOptions& options) {
  const std::unique_ptr<SSL_CTX, void (*)(SSL_CTX*)> context(
      SSL_CTX_new(TLS_client_method()), &SSL_CTX_free);
  if (context == nullptr) return Internal("OpenSSL cannot be started");
  if (SSL_CTX_load_verify_locations(context.get(), options.ca.c_str(),
                                    nullptr) != 1) {
    return CannotUse("--forward-ca", options.ca,
                     "cannot be read, or holds no certificate in PEM");
  }
  if (options.certificate.empty()) return OkStatus();
  if (SSL_CTX_use_certificate_chain_file(context.get(),
                                         options.certificate.c_str()) != 1) {
    return CannotUse("--forward-cert", options.certificate,
                     "cannot be read, or holds no certificate in PEM");
  }
  if (SSL_CTX_use_PrivateKey_file(context.get(), options.key.c_str(),
                                  SSL_FILETYPE_PEM) != 1 ||
      SSL_CTX_check_private_key(context.get()) != 1) {
    return CannotUse("--forward-key", options.key,
                     "cannot be read, or is not the key of --forward-cert");
  }
  return OkStatus();
}

std::shared_ptr<grpc::ChannelCredentials> CredentialsFor(
    const ForwardOptions& options) {
  if (options.ca.empty()) {
    return grpc::experimental::LocalCredentials(LOCAL_TCP);
  }
  namespace tls = grpc::experimental;
  tls::TlsChannelCredentialsOptions wanted;
  wanted.set_certificate_provider(
      std::make_shared<tls::FileWatcherCertificateProvider>(
          options.key, options.certificate, options.ca, kReadAgain));
  wanted.watch_root_certs();
  if (!options.certificate.empty()) wanted.watch_identity_key_cert_pairs();
  return tls::TlsCredentials(wanted);
}

}  // namespace

Status CheckForwardOptions(const ForwardOptions& options) {
  const std::string& target = options.target;
  if (target.empty()) {
    const bool any = !options.ca.empty() || !options.certificate.empty() ||
                     !options.key.empty() || !options.token_file.empty();
    return any ? InvalidArgument(
                     "--forward-ca, --forward-cert, --forward-key and "
                     "--forward-token-file are for --forward-to HOST:PORT; "
                     "give it, too")
               : OkStatus();
  }
  if (options.certificate.empty() != options.key.empty()) {
    return InvalidArgument(
        "--forward-cert and --forward-key belong together; give both");
  }
  const size_t colon = target.rfind(':');
  const bool has_port =
      colon != std::string::npos && colon > 0 && colon + 1 < target.size() &&
      target.size() - colon <= 6 &&
      std::all_of(target.begin() + static_cast<std::ptrdiff_t>(colon) + 1,
                  target.end(), [](char c) { return c >= '0' && c <= '9'; });
  if (!has_port || target.find('/') != std::string::npos) {
    return InvalidArgument(
        StrCat("--forward-to: cannot read \"", target, "\"; write HOST:PORT"));
  }
  if (options.token_file.empty()) {
    return InvalidArgument(
        "--forward-to: the central daemon asks for its token; name a file with "
        "it in --forward-token-file");
  }
  if (options.ca.empty() && !options.certificate.empty()) {
    return InvalidArgument(
        "--forward-cert: is for TLS; give --forward-ca, too");
  }
  if (options.ca.empty() && !OnThisMachine(target)) {
    return InvalidArgument(
        StrCat("--forward-to: ", target,
               " is not 127.0.0.1 or [::1]: that needs --forward-ca, so that "
               "nobody on the way reads or changes what is sent"));
  }
  return OkStatus();
}

StatusOr<std::shared_ptr<grpc::Channel>> ChannelToCentral(
    const ForwardOptions& options) {
  RETURN_IF_ERROR(CheckForwardOptions(options));
  if (TokenIn(options.token_file).empty()) {
    return CannotUse("--forward-token-file", options.token_file,
                     "cannot be read, or has no token in its first line");
  }
  if (!options.ca.empty()) {
    RETURN_IF_ERROR(CheckFiles(options));
  }
  grpc::ChannelArguments arguments;
  // A centre that is gone without a word is noticed in less than a minute.
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, 30'000);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 10'000);
  arguments.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 5'000);
  // On loopback the receiver is checked, so the channel may be plain.
  const auto token = grpc::experimental::MetadataCredentialsFromPlugin(
      std::make_unique<TokenPlugin>(options),
      options.ca.empty() ? GRPC_SECURITY_NONE : GRPC_PRIVACY_AND_INTEGRITY);
  return grpc::CreateCustomChannel(
      options.target,
      grpc::CompositeChannelCredentials(CredentialsFor(options), token),
      arguments);
}

std::string WhyNot(const ForwardOptions& options, const grpc::Status& status) {
  const std::string& said = status.error_message();
  const auto says = [&](const char* text) {
    return said.find(text) != std::string::npos;
  };
  const bool tls = !options.ca.empty();
  std::string why;
  const Status centre = CheckCentre(options);
  if (centre.code() == Code::kPermissionDenied) {
    why = centre.message();
  } else if (status.error_code() == grpc::StatusCode::UNAUTHENTICATED) {
    why = StrCat("the token in ", options.token_file, " is not the centre's");
  } else if (status.error_code() != grpc::StatusCode::UNAVAILABLE) {
    why = StrCat("it answers: ", said);
  } else if (tls && (says("andshake") || says("SSL"))) {
    why = StrCat("its certificate is not for this name, or not of ", options.ca,
                 ": ", said);
  } else if (tls && (says("read failed") || says("closed") || says("reset"))) {
    why = StrCat(options.certificate.empty()
                     ? "it ends the connection, as it does if it asks for a "
                       "certificate (--forward-cert): "
                     : "it ends the connection, as it does if it does not know "
                       "the CA of --forward-cert: ",
                 said);
  } else {
    why = StrCat("it cannot be reached: ", said);
  }
  return StrCat("centre ", options.target, ": ", why);
}

}  // namespace reprise::server
