// SPDX-License-Identifier: Apache-2.0

#include <openssl/bio.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>

#include <ctime>
#include <memory>

#include "base/str_cat.h"
#include "clients/cli/doctor/doctor.h"
#include "clients/cli/server/server_client.h"

namespace reprise::cli {
namespace {

// A certificate that expires within this many days is a warning.
constexpr int kSoonDays = 21;

struct FreeSsl {
  void operator()(BIO* bio) const { BIO_free_all(bio); }
  void operator()(SSL_CTX* context) const { SSL_CTX_free(context); }
  void operator()(X509* certificate) const { X509_free(certificate); }
};
template <typename T>
using Owned = std::unique_ptr<T, FreeSsl>;

// Returns the server's certificate; null if nothing there speaks TLS. Not
// verified, because nothing is sent.
Owned<X509> CertificateOf(const std::string& target) {
  const Owned<SSL_CTX> context(SSL_CTX_new(TLS_client_method()));
  if (!context) return nullptr;
  SSL_CTX_set_verify(context.get(), SSL_VERIFY_NONE, nullptr);
  const Owned<BIO> connection(BIO_new_ssl_connect(context.get()));
  if (!connection) return nullptr;
  BIO_set_conn_hostname(connection.get(), target.c_str());
  SSL* ssl = nullptr;
  BIO_get_ssl(connection.get(), &ssl);
  // A server that requires a client certificate has sent its own by now.
  (void)BIO_do_connect(connection.get());
  return Owned<X509>(ssl == nullptr ? nullptr : SSL_get1_peer_certificate(ssl));
}

// Returns the days until `time`; negative if it has passed.
int DaysUntil(const ASN1_TIME* time) {
  int days = 0;
  int seconds = 0;
  if (ASN1_TIME_diff(&days, &seconds, nullptr, time) != 1) return 0;
  return seconds < 0 ? days - 1 : days;
}

std::string DateOf(const ASN1_TIME* time) {
  std::tm parts{};
  char text[32] = "";
  if (ASN1_TIME_to_tm(time, &parts) == 1) {
    std::strftime(text, sizeof text, "%Y-%m-%d %H:%M UTC", &parts);
  }
  return text;
}

}  // namespace

Check CheckCertificate(const Endpoint& endpoint) {
  Check check{Health::kOk, "certificate", "", ""};
  const Owned<X509> certificate = CertificateOf(endpoint.target);
  if (!certificate) {
    return {Health::kProblem, "certificate",
            StrCat("nothing at ", endpoint.target, " speaks TLS"),
            "is the server up, and was it started with --tls-cert?"};
  }
  const ASN1_TIME* const from = X509_get0_notBefore(certificate.get());
  const ASN1_TIME* const until = X509_get0_notAfter(certificate.get());
  const int left = DaysUntil(until);
  if (X509_cmp_current_time(from) > 0) {
    check = {Health::kProblem, "certificate",
             StrCat("is not valid before ", DateOf(from)),
             "is the clock right? else wait, or use another one"};
  } else if (X509_cmp_current_time(until) < 0) {
    check = {Health::kProblem, "certificate",
             StrCat("ended at ", DateOf(until)),
             "renew it; the server reads the new files by itself"};
  } else {
    check.found = StrCat("ends in ", left, left == 1 ? " day" : " days",
                         ", at ", DateOf(until));
    if (left < kSoonDays) {
      check.health = Health::kWarning;
      check.advice = "renew it; the server reads the new files by itself";
    }
  }
  return check;
}

}  // namespace reprise::cli
