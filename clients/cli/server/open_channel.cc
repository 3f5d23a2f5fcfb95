// SPDX-License-Identifier: Apache-2.0
#include "clients/cli/server/open_channel.h"

#include <grpcpp/grpcpp.h>
#include <grpcpp/security/tls_certificate_provider.h>
#include <grpcpp/security/tls_certificate_verifier.h>
#include <grpcpp/security/tls_credentials_options.h>

#include <map>
#include <string>
#include <vector>

#include "base/str_cat.h"
#include "clients/cli/core/files.h"

namespace reprise::cli {
namespace {

// Returns the first certificate in a file, as PEM.
StatusOr<std::string> LeafOf(const std::string& path) {
  ASSIGN_OR_RETURN(const std::string text, ReadFile(path, 1 << 20));
  constexpr std::string_view kEnd = "-----END CERTIFICATE-----";
  const size_t begin = text.find("-----BEGIN CERTIFICATE-----");
  const size_t end = text.find(kEnd);
  if (begin == std::string::npos || end == std::string::npos || end < begin) {
    return FailedPrecondition(StrCat(path, ": is not a certificate in PEM"));
  }
  return text.substr(begin, end + kEnd.size() - begin);
}

// Removes white space, to compare PEM blocks whatever their line breaks.
std::string WithoutSpace(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c > ' ') out += c;
  }
  return out;
}

// Trusts one certificate, whatever its signer and names.
class PinVerifier final
    : public grpc::experimental::ExternalCertificateVerifier {
 public:
  explicit PinVerifier(std::string_view pem) : pem_(WithoutSpace(pem)) {}

  bool Verify(grpc::experimental::TlsCustomVerificationCheckRequest* request,
              std::function<void(grpc::Status)>,
              grpc::Status* status) override {
    const grpc::string_ref given = request->peer_cert();
    if (WithoutSpace({given.data(), given.size()}) != pem_) {
      *status = {grpc::StatusCode::UNAUTHENTICATED,
                 "not the certificate that the server announced"};
    }
    return true;
  }
  void Cancel(grpc::experimental::TlsCustomVerificationCheckRequest*) override {
  }

 private:
  const std::string pem_;
};

std::shared_ptr<grpc::ChannelCredentials> Pinned(
    const std::string& pem, const grpc::SslCredentialsOptions& own) {
  using grpc::experimental::ExternalCertificateVerifier;
  grpc::experimental::TlsChannelCredentialsOptions options;
  options.set_verify_server_certs(false);  // the verifier does it
  options.set_check_call_host(false);
  options.set_certificate_verifier(
      ExternalCertificateVerifier::Create<PinVerifier>(pem));
  if (!own.pem_cert_chain.empty()) {
    options.set_certificate_provider(
        std::make_shared<grpc::experimental::StaticDataCertificateProvider>(
            std::vector<grpc::experimental::IdentityKeyCertPair>{
                {own.pem_private_key, own.pem_cert_chain}}));
    options.watch_identity_key_cert_pairs();
  }
  return grpc::experimental::TlsCredentials(options);
}

// Returns TLS credentials if the endpoint uses TLS.
StatusOr<std::shared_ptr<grpc::ChannelCredentials>> CredentialsOf(
    const Endpoint& endpoint) {
  if (!endpoint.tls) return grpc::experimental::LocalCredentials(LOCAL_TCP);
  grpc::SslCredentialsOptions options;
  const auto read = [](const std::string& path, std::string& into) -> Status {
    if (path.empty()) return OkStatus();
    ASSIGN_OR_RETURN(into, ReadFile(path, 1 << 20));
    return OkStatus();
  };
  RETURN_IF_ERROR(read(endpoint.ca, options.pem_root_certs));
  RETURN_IF_ERROR(read(endpoint.certificate, options.pem_cert_chain));
  RETURN_IF_ERROR(read(endpoint.key, options.pem_private_key));
  if (endpoint.pinned.empty() || !endpoint.ca.empty()) {
    return grpc::SslCredentials(options);
  }
  ASSIGN_OR_RETURN(const std::string pinned, LeafOf(endpoint.pinned));
  return Pinned(pinned, options);
}

// Adds the token to every call, if its receiver may have it: the channel may
// have connected again meanwhile, to somebody else.
class TokenPlugin final : public grpc::MetadataCredentialsPlugin {
 public:
  explicit TokenPlugin(Endpoint endpoint) : endpoint_(std::move(endpoint)) {}

  grpc::Status GetMetadata(
      grpc::string_ref /*url*/, grpc::string_ref /*method*/,
      const grpc::AuthContext& /*channel*/,
      std::multimap<grpc::string, grpc::string>* metadata) override {
    if (const Status receiver = endpoint_.CheckReceiver(); !receiver.ok()) {
      return {static_cast<grpc::StatusCode>(receiver.code()),
              receiver.message()};
    }
    metadata->emplace("authorization", "Bearer " + endpoint_.token);
    return grpc::Status::OK;
  }

 private:
  const Endpoint endpoint_;
};

}  // namespace

StatusOr<std::shared_ptr<grpc::Channel>> OpenChannel(const Endpoint& endpoint) {
  grpc::ChannelArguments arguments;
  // A proxy from the environment must not be used for loopback.
  if (!endpoint.tls) arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  arguments.SetMaxReceiveMessageSize(64 << 20);
  ASSIGN_OR_RETURN(auto credentials, CredentialsOf(endpoint));
  if (!endpoint.token.empty()) {
    credentials = grpc::CompositeChannelCredentials(
        credentials,
        grpc::experimental::MetadataCredentialsFromPlugin(
            std::make_unique<TokenPlugin>(endpoint),
            endpoint.tls ? GRPC_PRIVACY_AND_INTEGRITY : GRPC_SECURITY_NONE));
  }
  return grpc::CreateCustomChannel(endpoint.target, credentials, arguments);
}

Status FromGrpc(const grpc::Status& status, const Endpoint& endpoint) {
  if (status.ok()) return OkStatus();
  if (status.error_code() == grpc::StatusCode::UNAVAILABLE) {
    return Unavailable(StrCat("the server at ", endpoint.target,
                              " does not answer; ",
                              "start one with `reprise serve`"));
  }
  // The codes have gRPC's numbers (base/status.h).
  std::string message = status.error_message();
  if (status.error_code() == grpc::StatusCode::UNAUTHENTICATED) {
    return Status(
        Code::kUnauthenticated,
        StrCat("the server at ", endpoint.target,
               endpoint.token.empty()
                   ? " asks for its token; name the file that holds it with "
                     "--token-file or REPRISE_TOKEN_FILE"
                   : " does not take this token; name the file that holds its "
                     "own with --token-file or REPRISE_TOKEN_FILE"));
  }
  if (message.empty()) message = "the server gave no reason";
  return Status(static_cast<Code>(status.error_code()), message);
}

}  // namespace reprise::cli
