// SPDX-License-Identifier: Apache-2.0
#include "base/str_cat.h"
#include "server/net/address.h"
#include "server/net/connect.h"
#include "server/net/routes.h"

namespace reprise::server {

namespace {

constexpr std::string_view kTokenField = "token=";
// The cookie's lifetime: 30 days.
constexpr int kCookieSeconds = 30 * 24 * 3600;

// No script may run on these pages.
constexpr char kPlainPagePolicy[] =
    "default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors "
    "'none'";

// Returns whether the request comes from another site's page. Browsers name the
// page that sent a request; other clients do not. Pages on other ports of this
// machine count as foreign, because they may be another user's.
bool FromForeignPage(const HttpRequest& request) {
  const std::string_view origin = request.Header("origin");
  if (origin.empty()) return false;
  const size_t scheme = origin.find("://");
  return scheme == std::string_view::npos ||
         origin.substr(scheme + 3) != request.Header("host");
}

HttpResponse Page(int status, HttpHeaders more, std::string_view head,
                  std::string_view text) {
  HttpHeaders headers = {{"Content-Type", "text/html; charset=utf-8"},
                         {"Cache-Control", "no-store"},
                         {"Content-Security-Policy", kPlainPagePolicy},
                         {"X-Content-Type-Options", "nosniff"},
                         {"Referrer-Policy", "no-referrer"}};
  for (auto& header : more) headers.push_back(std::move(header));
  return {
      .status = status,
      .headers = std::move(headers),
      .body = StrCat("<!doctype html><html lang=\"en\"><meta "
                     "charset=\"utf-8\">",
                     head, "<title>Reprise</title><p>", text, "</p></html>\n")};
}

// A query split into its token and the rest, with "?" unless that is empty.
struct SplitQuery {
  std::string rest;
  std::optional<std::string> token;
};

SplitQuery SplitSecret(std::string_view query) {
  SplitQuery split;
  while (!query.empty()) {
    const std::string_view field = query.substr(0, query.find('&'));
    query.remove_prefix(std::min(query.size(), field.size() + 1));
    if (field.starts_with(kTokenField)) {
      split.token = std::string(field.substr(kTokenField.size()));
    } else {
      split.rest += StrCat(split.rest.empty() ? "?" : "&", field);
    }
  }
  return split;
}

// Escapes a path and query for use in a quoted HTML attribute.
std::string Escaped(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == '&') {
      out += "&amp;";
    } else if (c == '<' || c == '>' || c == '"' || c == '\'') {
      out += StrCat("&#", static_cast<int>(c), ";");
    } else {
      out += c;
    }
  }
  return out;
}

// Returns whether the browser follows a link from another site's page.
bool CrossSite(const HttpRequest& request) {
  return request.Header("sec-fetch-site") == "cross-site";
}

}  // namespace

const char* WhyForeign(const HttpRequest& request) {
  // With TLS the certificate identifies this server, so DNS rebinding fails
  // there.
  if (!request.tls && !IsLoopbackHost(request.Header("host"))) {
    return "this server answers to localhost only; open it as "
           "http://localhost:PORT";
  }
  if (FromForeignPage(request)) {
    return "requests from pages of other sites are refused";
  }
  return nullptr;
}

StatusOr<Access> AccessOf(const Tokens& tokens, const HttpRequest& request) {
  Credentials given{.authorization = request.Header("authorization"),
                    .cookies = request.Header("cookie"),
                    .forwarded_users = {}};
  for (const auto& [name, value] : request.headers) {
    if (name == "x-forwarded-user") given.forwarded_users.push_back(value);
  }
  return tokens.Find(given);
}

std::optional<HttpResponse> Entry(const Tokens& tokens,
                                  const HttpRequest& request) {
  if (request.method != "GET" || !request.path.starts_with('/') ||
      request.path.starts_with(kRpcPrefix)) {
    return std::nullopt;
  }
  const SplitQuery query = SplitSecret(request.query);
  if (!query.token) return std::nullopt;
  const std::optional<std::string> value = tokens.CookieFor(*query.token);
  if (!value) return AskForToken(request);
  // Exactly one leading slash: "//host" would be another server.
  std::string target = request.path + query.rest;
  target.erase(0, target.find_first_not_of("/\\"));
  target.insert(0, "/");
  const std::pair<std::string, std::string> cookie = {
      "Set-Cookie",
      StrCat(*value, "; Path=/; HttpOnly; SameSite=Strict; Max-Age=",
             kCookieSeconds, request.tls ? "; Secure" : "")};
  if (CrossSite(request)) {
    // A redirect would still count as a request from the other site, without
    // the cookie; a request made by this page carries it.
    return Page(200, {cookie},
                StrCat("<meta http-equiv=\"refresh\" content=\"0;url=",
                       Escaped(target), "\">"),
                StrCat("<a href=\"", Escaped(target), "\">Open the page</a>."));
  }
  return Page(303, {cookie, {"Location", target}}, "", "See the page.");
}

HttpResponse AskForToken(const HttpRequest& request, const std::string& why) {
  const std::pair<std::string, std::string> challenge = {
      "WWW-Authenticate", "Bearer realm=\"reprise\""};
  if (request.path.starts_with(kRpcPrefix) || request.path == "/import") {
    HttpResponse refusal = Refusal(Status(Code::kUnauthenticated, why));
    refusal.headers.push_back(challenge);
    return refusal;
  }
  const bool page =
      request.Header("accept").find("text/html") != std::string_view::npos;
  if (page) {
    return Page(401, {challenge}, "",
                "This server asks for its token: open the link that "
                "<code>reprise status</code> prints on its machine.");
  }
  HttpResponse refusal = TextResponse(401, why);
  refusal.headers.push_back(challenge);
  return refusal;
}

}  // namespace reprise::server
