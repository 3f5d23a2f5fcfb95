// SPDX-License-Identifier: Apache-2.0
//
// Access: callers over TCP need the token; everyone else is refused.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>

#include "base/str_cat.h"
#include "server/net/secret.h"
#include "server/net/tokens.h"
#include "tests/server/server_harness.h"

namespace reprise::server {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

constexpr char kRpc[] = "/reprise.v1.Query/ListRuns";

std::string Ask(const TestServer& server, const std::string& start,
                const std::string& headers, const std::string& body = "") {
  return server.HttpWithoutToken(
      start + " HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n" +
      headers + "Content-Length: " + std::to_string(body.size()) + "\r\n\r\n" +
      body);
}

std::string Call(const TestServer& server, const std::string& headers) {
  return Ask(server, StrCat("POST ", kRpc),
             "Content-Type: application/json\r\n" + headers, "{}");
}

// Returns "name=value" of the cookie that an answer sets.
std::string CookieOf(const std::string& response) {
  const size_t at = response.find("Set-Cookie: ");
  if (at == std::string::npos) return "";
  const std::string rest = response.substr(at + 12);
  return rest.substr(0, rest.find(';'));
}

void WriteText(const std::string& path, const std::string& text, mode_t mode) {
  std::ofstream(path) << text;
  ASSERT_EQ(::chmod(path.c_str(), mode), 0);
}

// ---- HTTP ----

TEST(AccessTest, NothingThatTellsOrDoesSomethingIsAnsweredWithoutTheToken) {
  TestServer server;
  const std::string wrong(server.token().size(), 'f');
  for (const std::string& headers :
       {std::string(), StrCat("Authorization: Bearer ", wrong, "\r\n"),
        StrCat("Authorization: Basic ", server.token(), "\r\n"),
        StrCat("Authorization: Bearer ", server.token(), "0\r\n"),
        std::string("Authorization: Bearer \r\n"),
        StrCat("Cookie: reprise=", server.token(), "\r\n")}) {
    EXPECT_THAT(Call(server, headers), StartsWith("HTTP/1.1 401")) << headers;
    for (const char* path :
         {"/", "/runs/1", "/metrics", "/index.html", "/?token=", "/?token=x"}) {
      EXPECT_THAT(Ask(server, StrCat("GET ", path), headers),
                  StartsWith("HTTP/1.1 401"))
          << path << " " << headers;
    }
    EXPECT_THAT(Ask(server, "POST /import?name=x",
                    "Content-Type: application/octet-stream\r\n" + headers),
                StartsWith("HTTP/1.1 401"))
        << headers;
  }
}

TEST(AccessTest, TheRefusalIsOneSentenceThatSaysWhatToDo) {
  TestServer server;
  const std::string answer = Call(server, "");
  EXPECT_THAT(answer, HasSubstr("WWW-Authenticate: Bearer"));
  EXPECT_THAT(answer,
              HasSubstr("{\"code\":\"unauthenticated\",\"message\":\""));
  EXPECT_THAT(answer, HasSubstr(kAsksForToken));
  EXPECT_THAT(Ask(server, "GET /", "Accept: text/html\r\n"),
              HasSubstr("<code>reprise status</code>"));
}

TEST(AccessTest, HealthIsForEverybodyAndReasonsAreNot) {
  TestServer server;
  EXPECT_THAT(Ask(server, "GET /healthz", ""), StartsWith("HTTP/1.1 200"));
  EXPECT_THAT(Ask(server, "GET /readyz", ""), StartsWith("HTTP/1.1 200"));
  // A POST is not a health check, so it needs the token.
  EXPECT_THAT(Ask(server, "POST /healthz", ""), StartsWith("HTTP/1.1 401"));
}

TEST(AccessTest, TheTokenIsTakenAsABearersAndTheSchemeHasNoCase) {
  TestServer server;
  EXPECT_THAT(Call(server, server.authorization()), StartsWith("HTTP/1.1 200"));
  EXPECT_THAT(
      Call(server, StrCat("authorization: bearer ", server.token(), "\r\n")),
      StartsWith("HTTP/1.1 200"));
}

TEST(AccessTest, ALinkIsTurnedIntoACookieAndLeavesTheAddress) {
  TestServer server;
  const std::string entry =
      Ask(server, StrCat("GET /runs/1?budget=2&token=", server.token(), "&t=3"),
          "");

  EXPECT_THAT(entry, StartsWith("HTTP/1.1 303"));
  EXPECT_THAT(entry, HasSubstr("Location: /runs/1?budget=2&t=3\r\n"));
  EXPECT_THAT(entry, HasSubstr("; Path=/; HttpOnly; SameSite=Strict; "));
  EXPECT_THAT(entry, HasSubstr("Referrer-Policy: no-referrer"));
  const std::string cookie = CookieOf(entry);
  EXPECT_THAT(cookie, Not(HasSubstr(server.token())));
  EXPECT_THAT(Call(server, StrCat("Cookie: a=b; ", cookie, "; c=d\r\n")),
              StartsWith("HTTP/1.1 200"));
  EXPECT_THAT(Call(server, StrCat("Cookie: ", cookie, "0\r\n")),
              StartsWith("HTTP/1.1 401"));
}

TEST(AccessTest, ALinkInAPageOfAnotherSiteWorksWithoutARedirect) {
  TestServer server;
  const std::string entry =
      Ask(server, StrCat("GET /?a=%22<b&token=", server.token()),
          "Sec-Fetch-Site: cross-site\r\n");

  EXPECT_THAT(entry, StartsWith("HTTP/1.1 200"));
  EXPECT_THAT(entry, HasSubstr("content=\"0;url=/?a=%22&#60;b\""));
  EXPECT_THAT(CookieOf(entry), Not(""));
}

TEST(AccessTest, ALinkLeadsToNoOtherServer) {
  TestServer server;
  for (const char* path : {"//evil.example/x", "/\\evil.example/x"}) {
    EXPECT_THAT(
        Ask(server, StrCat("GET ", path, "?token=", server.token()), ""),
        HasSubstr("Location: /evil.example/x\r\n"));
  }
}

TEST(AccessTest, APageOfAnotherPortIsForeignEvenWithTheCookie) {
  TestServer server;
  const std::string cookie =
      CookieOf(Ask(server, StrCat("GET /?token=", server.token()), ""));
  EXPECT_THAT(Call(server, StrCat("Cookie: ", cookie,
                                  "\r\nOrigin: http://localhost:9999\r\n")),
              StartsWith("HTTP/1.1 403"));
}

// ---- gRPC ----

TEST(AccessTest, NoServiceIsReachedOverGrpcWithoutTheToken) {
  TestServer server;
  for (const std::string& token :
       {std::string(), std::string(server.token().size(), 'f')}) {
    const auto channel = ChannelTo(server.daemon().grpc_address(), token);
    const auto expect_refused = [](const grpc::Status& status) {
      EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAUTHENTICATED);
      EXPECT_EQ(status.error_message(), kAsksForToken);
    };
    {
      grpc::ClientContext context;
      v1::ListRunsResponse runs;
      expect_refused(
          v1::Query::NewStub(channel)->ListRuns(&context, {}, &runs));
    }
    {
      grpc::ClientContext context;
      const auto planner = v1::Planner::NewStub(channel);
      const auto stream = planner->Plan(&context, {});
      expect_refused(stream->Finish());
    }
    {
      grpc::ClientContext context;
      const auto planner = v1::Planner::NewStub(channel);
      v1::GraphRef ref;
      const auto stream = planner->PutGraph(&context, &ref);
      expect_refused(stream->Finish());
    }
    {
      const auto ingest = v1::Ingest::NewStub(channel);
      Sender sender(*ingest, "s1", "run-1");
      EXPECT_EQ(sender.Greet(), std::nullopt);
      expect_refused(sender.Finish());
    }
    EXPECT_EQ(RawCall(channel, "/grpc.health.v1.Health/Check", ""), "");
  }
  EXPECT_EQ(server.CountRows("SELECT count(*) FROM runs"), 0);
  EXPECT_NE(RawCall(server.channel(), "/grpc.health.v1.Health/Check", ""), "");
}

TEST(AccessTest, TheServicesAreNotListedToCallers) {
  TestServer server;
  EXPECT_EQ(RawCall(server.channel(),
                    "/grpc.reflection.v1alpha.ServerReflection/"
                    "ServerReflectionInfo",
                    std::string("\x3a\x00", 2)),
            "");
}

// ---- The file ----

TEST(SecretTest, IsMadeOnceForItsOwnerAloneAndKeptOverARestart) {
  TestServer server;
  const std::string path = server.folder() + "/data/token";
  const std::string before = server.token();
  EXPECT_EQ(before.size(), 64u);
  EXPECT_EQ(ModeOf(path), 0600u);
  EXPECT_EQ(ModeOf(server.folder() + "/run/server.json"), 0600u);

  server.Stop();
  server.Start();

  EXPECT_EQ(server.token(), before);
  TestServer other;
  EXPECT_NE(other.token(), before);
}

TEST(SecretTest, AFileThatOthersCanReadIsRefusedByName) {
  const TemporaryFolder folder;
  const std::string path = folder.path() + "/token";
  WriteText(path, "0123456789abcdef\n", 0640);
  EXPECT_THAT(Secret::ReadOrMake(path).status().message(),
              HasSubstr(path + ": others can read or replace the token"));
  EXPECT_TRUE(Tokens::Read(path).ok());  // as a cluster mounts it
  for (const mode_t mode : {0644u, 0660u}) {
    ASSERT_EQ(::chmod(path.c_str(), mode), 0);
    EXPECT_EQ(Tokens::Read(path).status().code(), Code::kPermissionDenied);
  }
}

TEST(SecretTest, WhatIsNoTokenIsRefused) {
  const TemporaryFolder folder;
  const std::string path = folder.path() + "/token";
  EXPECT_EQ(Tokens::Read(path).status().code(), Code::kNotFound);
  for (const std::string& text :
       {std::string(), std::string("short"), std::string("0123456789 abcdef"),
        std::string("0123456789abcdef;x"), std::string(600, 'a')}) {
    WriteText(path, text, 0600);
    EXPECT_EQ(Tokens::Read(path).status().code(), Code::kInvalidArgument)
        << text;
  }
}

TEST(SecretTest, ComparesTheWholeToken) {
  const Secret secret("0123456789abcdef");
  EXPECT_TRUE(secret.IsToken("0123456789abcdef"));
  EXPECT_FALSE(secret.IsToken("0123456789abcdeg"));
  EXPECT_FALSE(secret.IsToken("0123456789abcde"));
  EXPECT_FALSE(secret.IsToken(""));
  EXPECT_FALSE(secret.HasCookie(secret.cookie_name()));
  EXPECT_FALSE(secret.HasCookie("x" + secret.cookie_name() + "=" +
                                secret.cookie_value()));
}

}  // namespace
}  // namespace reprise::server
