// SPDX-License-Identifier: Apache-2.0
//
// Who is let in over HTTP: requests that name this machine, from no foreign
// page, with the token.
//
//   link     GET /runs/1?token=T  ─▶  the cookie, and on to /runs/1
//   page     its cookie: HttpOnly, SameSite=Strict
//   others   Authorization: Bearer T
#pragma once

#include <optional>

#include "server/net/http.h"
#include "server/net/secret.h"

namespace reprise::server {

// Why a request is refused whatever it asks for; null: it is not.
const char* WhyForeign(const HttpRequest& request);

// The request has the token, or the cookie that was given for it.
bool KnowsToken(const Secret& secret, const HttpRequest& request);

// The answer to a link: the cookie, and the same page without the token in its
// address; nothing for requests that are no link. A wrong token gets what
// AskForToken answers.
std::optional<HttpResponse> Entry(const Secret& secret,
                                  const HttpRequest& request);

// 401 and one sentence, in the form that the caller reads.
HttpResponse AskForToken(const HttpRequest& request);

}  // namespace reprise::server
