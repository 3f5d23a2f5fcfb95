// SPDX-License-Identifier: Apache-2.0
//
// Controls access over HTTP: a request must name this machine, must not come
// from a page of another site, and must have the token.
//
//   link     GET /runs/1?token=T  ─▶  sets the cookie, redirects to /runs/1
//   page     sends its cookie: HttpOnly, SameSite=Strict
//   others   send Authorization: Bearer T
#pragma once

#include <optional>

#include "server/net/http.h"
#include "server/net/secret.h"

namespace reprise::server {

// Returns why a request is refused regardless of what it asks for, or null.
const char* WhyForeign(const HttpRequest& request);

// Returns whether the request has the token or the cookie made from it.
bool KnowsToken(const Secret& secret, const HttpRequest& request);

// Answers a link with a token: sets the cookie and redirects to the same page
// without the token in its address. Nothing if the request is not such a link.
// A wrong token gets the answer of AskForToken.
std::optional<HttpResponse> Entry(const Secret& secret,
                                  const HttpRequest& request);

// Returns 401 and one sentence, in the format that the caller reads.
HttpResponse AskForToken(const HttpRequest& request);

}  // namespace reprise::server
