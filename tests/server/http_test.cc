// SPDX-License-Identifier: Apache-2.0
#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstring>
#include <nlohmann/json.hpp>
#include <thread>

#include "base/str_cat.h"
#include "server/core/build_info.h"
#include "server/net/routes.h"
#include "tests/server/server_harness.h"

namespace reprise::server {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

constexpr char kJson[] = "application/json";

std::string Get(const TestServer& server, const std::string& path,
                const std::string& headers = "Host: localhost\r\n") {
  return server.Http("GET " + path + " HTTP/1.1\r\n" + headers +
                     "Connection: close\r\n\r\n");
}

std::string BodyOf(const std::string& response) {
  return response.substr(response.find("\r\n\r\n") + 4);
}

// Returns the bytes of a chunked body.
std::string Unchunked(const std::string& body) {
  std::string bytes;
  size_t at = 0;
  while (at < body.size()) {
    const size_t line = body.find("\r\n", at);
    const size_t size = std::stoul(body.substr(at, line - at), nullptr, 16);
    if (size == 0) break;
    bytes += body.substr(line + 2, size);
    at = line + 2 + size + 2;
  }
  return bytes;
}

struct Envelope {
  unsigned flags = 0;
  std::string payload;
};

std::vector<Envelope> Envelopes(const std::string& bytes) {
  std::vector<Envelope> all;
  size_t at = 0;
  while (at + 5 <= bytes.size()) {
    const auto byte = [&](size_t i) {
      return static_cast<unsigned char>(bytes[at + i]);
    };
    const size_t size = static_cast<size_t>(byte(1)) << 24 | byte(2) << 16 |
                        byte(3) << 8 | byte(4);
    all.push_back({byte(0), bytes.substr(at + 5, size)});
    at += 5 + size;
  }
  return all;
}

std::string Enveloped(const std::string& payload) {
  std::string bytes(5, '\0');
  bytes[3] = static_cast<char>(payload.size() >> 8);
  bytes[4] = static_cast<char>(payload.size() & 0xff);
  return bytes + payload;
}

// ---- Health, metrics, pages ----

TEST(HttpTest, TellsThatItLivesAndIsReady) {
  TestServer server;
  EXPECT_THAT(Get(server, "/healthz"), StartsWith("HTTP/1.1 200"));
  EXPECT_THAT(Get(server, "/readyz"), StartsWith("HTTP/1.1 200"));
}

TEST(HttpTest, CountsWhatItDoes) {
  TestServer server;
  (void)server.PutGraph(SmallGraph(), "");
  (void)server.Post("/reprise.v1.Query/ListRuns", kJson, "{}");
  const std::string metrics = Get(server, "/metrics");
  EXPECT_THAT(metrics,
              HasSubstr(StrCat("reprise_build_info{revision=\"", kRevision,
                               "\",version=\"", REPRISE_VERSION "\"} 1")));
  EXPECT_THAT(metrics, HasSubstr("reprise_store_size_bytes "));
  for (const char* name :
       {"process_cpu_seconds_total", "process_start_time_seconds",
        "process_resident_memory_bytes", "process_open_fds", "process_max_fds",
        "reprise_data_free_bytes"}) {
    const size_t at = metrics.find(StrCat("\n", name, " "));
    ASSERT_NE(at, std::string::npos) << name;
    EXPECT_GT(std::stod(metrics.substr(at + 2 + std::strlen(name))), 0) << name;
  }
  EXPECT_THAT(metrics,
              HasSubstr("reprise_rpc_duration_seconds_count{code=\"ok\",method="
                        "\"/reprise.v1.Query/ListRuns\"} 1"));
}

TEST(HttpTest, ServesThePageUnderEveryPathThatIsNoFile) {
  TestServer server;
  for (const char* path : {"/", "/runs/abc", "/plan"}) {
    const std::string page = Get(server, path);
    EXPECT_THAT(page, StartsWith("HTTP/1.1 200")) << path;
    EXPECT_THAT(page, HasSubstr("text/html")) << path;
    EXPECT_THAT(page, HasSubstr("Cache-Control: no-cache")) << path;
    EXPECT_THAT(page, HasSubstr("default-src 'none'")) << path;
  }
  EXPECT_THAT(Get(server, "/missing.js"), StartsWith("HTTP/1.1 404"));
  EXPECT_THAT(Get(server, "/../../etc/passwd.txt"), StartsWith("HTTP/1.1 404"));
}

TEST(HttpTest, LetsHashedFilesBeKeptForEver) {
  // Calls the router directly: which files are embedded depends on whether the
  // dashboard was built, routing does not.
  class Recorder : public HttpReply {
   public:
    void Respond(HttpResponse given) override { response = std::move(given); }
    void BeginStream(int, HttpHeaders) override {}
    void Write(std::string) override {}
    void End() override {}
    size_t unsent() const override { return 0; }
    bool cancelled() const override { return false; }
    HttpResponse response;
  };
  Metrics metrics;
  const MethodTable methods(metrics);
  const WebFile files[] = {{"index.html", "<p>"}, {"assets/a-1f.js", "1;"}};
  const Tokens tokens{Secret("0123456789abcdef")};
  const Routes routes{methods, files, {}, {}, tokens};
  const HttpHandler handler = MakeHandler(routes);
  const auto cache_of = [&](const std::string& path) {
    auto reply = std::make_shared<Recorder>();
    handler({.method = "GET",
             .path = path,
             .query = {},
             .headers = {{"host", "localhost"},
                         {"authorization", "Bearer 0123456789abcdef"}},
             .body = {}},
            reply);
    for (const auto& [name, value] : reply->response.headers) {
      if (name == "Cache-Control") return value;
    }
    return std::string();
  };

  EXPECT_THAT(cache_of("/assets/a-1f.js"), HasSubstr("immutable"));
  EXPECT_EQ(cache_of("/runs/1"), "no-cache");
}

TEST(HttpTest, AnswersToLoopbackNamesOnly) {
  TestServer server;
  EXPECT_THAT(Get(server, "/healthz", "Host: evil.example\r\n"),
              StartsWith("HTTP/1.1 403"));
  EXPECT_THAT(Get(server, "/healthz", ""), StartsWith("HTTP/1.1 403"));
  EXPECT_THAT(Get(server, "/healthz",
                  "Host: localhost\r\nOrigin: https://evil.example\r\n"),
              StartsWith("HTTP/1.1 403"));
  EXPECT_THAT(Get(server, "/healthz",
                  "Host: localhost:7070\r\nOrigin: http://localhost:7070\r\n"),
              StartsWith("HTTP/1.1 200"));
  // Another port of this machine may belong to another user.
  EXPECT_THAT(Get(server, "/healthz",
                  "Host: localhost:7070\r\nOrigin: http://localhost:5173\r\n"),
              StartsWith("HTTP/1.1 403"));
}

TEST(HttpTest, KeepsAConnectionForSeveralRequests) {
  TestServer server;
  const std::string one = "GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n";
  const std::string last =
      "HEAD /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
  const std::string answers = server.Http(one + one + last);
  size_t count = 0;
  for (size_t at = 0;
       (at = answers.find("HTTP/1.1 200", at)) != std::string::npos; ++at) {
    ++count;
  }
  EXPECT_EQ(count, 3u);
  EXPECT_THAT(answers, ::testing::EndsWith("\r\n\r\n"));  // HEAD: no body
}

TEST(HttpTest, SurvivesBytesThatAreNotHttp) {
  TestServer server;
  EXPECT_THAT(server.Http("\x16\x03\x01\x02 a TLS hello \r\n\r\n"),
              Not(HasSubstr("200")));
  EXPECT_THAT(server.Http("GET / HTTP/1.1\r\nHost: localhost\r\nX: " +
                          std::string(20'000, 'x') + "\r\n\r\n"),
              StartsWith("HTTP/1.1 431"));
  EXPECT_THAT(server.Http("POST /reprise.v1.Query/ListRuns HTTP/1.1\r\nHost: "
                          "localhost\r\nContent-Length: 99999999\r\n\r\n"),
              StartsWith("HTTP/1.1 413"));
  EXPECT_THAT(Get(server, "/healthz"), StartsWith("HTTP/1.1 200"));
}

// ---- Connect ----

TEST(ConnectTest, AnswersUnaryCallsInJsonAndInBinary) {
  TestServer server;
  Sender sender(server.ingest(), "s1", "run-1");
  ASSERT_TRUE(sender.Greet());

  const std::string json = server.Post("/reprise.v1.Query/GetRun", kJson,
                                       R"({"runId":"latest","unknown":1})");
  EXPECT_THAT(json, StartsWith("HTTP/1.1 200"));
  EXPECT_EQ(nlohmann::json::parse(BodyOf(json))["runId"], "run-1");

  v1::GetRunRequest request;
  request.set_run_id("latest");
  const std::string binary =
      server.Post("/reprise.v1.Query/GetRun", "application/proto",
                  request.SerializeAsString());
  EXPECT_THAT(binary, HasSubstr("Content-Type: application/proto"));
  v1::Run run;
  ASSERT_TRUE(run.ParseFromString(BodyOf(binary)));
  EXPECT_EQ(run.run_id(), "run-1");
}

TEST(ConnectTest, TranslatesErrors) {
  TestServer server;
  const auto code_of = [](const std::string& response) {
    return nlohmann::json::parse(BodyOf(response))["code"];
  };

  const std::string missing =
      server.Post("/reprise.v1.Query/GetRun", kJson, R"({"runId":"nope"})");
  EXPECT_THAT(missing, StartsWith("HTTP/1.1 404"));
  EXPECT_EQ(code_of(missing), "not_found");
  const std::string empty = server.Post("/reprise.v1.Query/GetRun", kJson, "");
  EXPECT_THAT(empty, StartsWith("HTTP/1.1 400"));
  EXPECT_EQ(code_of(empty), "invalid_argument");
  const std::string garbage =
      server.Post("/reprise.v1.Query/GetRun", kJson, "{]");
  EXPECT_EQ(code_of(garbage), "invalid_argument");
  const std::string unknown =
      server.Post("/reprise.v1.Query/Nothing", kJson, "{}");
  EXPECT_THAT(unknown, StartsWith("HTTP/1.1 404"));
  EXPECT_EQ(code_of(unknown), "unimplemented");
  EXPECT_THAT(server.Post("/reprise.v1.Query/GetRun", "text/plain", "{}"),
              StartsWith("HTTP/1.1 415"));
  EXPECT_THAT(server.Post("/reprise.v1.Planner/Plan", "application/proto", ""),
              StartsWith("HTTP/1.1 415"));
  EXPECT_THAT(Get(server, "/reprise.v1.Query/GetRun"),
              StartsWith("HTTP/1.1 405"));
}

TEST(ConnectTest, StreamsMessagesInEnvelopesAndEndsWithFlagTwo) {
  TestServer server;
  const std::string graph_id = server.PutGraph(SmallGraph(), "");
  const std::string response = server.Post(
      "/reprise.v1.Planner/Plan", "application/connect+json",
      Enveloped(R"({"graphId":")" + graph_id + R"(","budget":"1.0x"})"));

  EXPECT_THAT(response, StartsWith("HTTP/1.1 200"));
  EXPECT_THAT(response, HasSubstr("application/connect+json"));
  const std::vector<Envelope> parts = Envelopes(Unchunked(BodyOf(response)));
  ASSERT_GE(parts.size(), 2u);
  EXPECT_EQ(parts.back().flags, 2u);
  EXPECT_EQ(parts.back().payload, "{}");
  const auto event = nlohmann::json::parse(parts[parts.size() - 2].payload);
  EXPECT_EQ(event["plan"]["graphId"], graph_id);
  EXPECT_EQ(event["plan"]["feasible"], true);
}

TEST(ConnectTest, EndsAStreamWithItsError) {
  TestServer server;
  const std::string response = server.Post(
      "/reprise.v1.Planner/Plan", "application/connect+json",
      Enveloped(R"({"graphId":"00000000000000ff","budget":"1.0x"})"));
  const std::vector<Envelope> parts = Envelopes(Unchunked(BodyOf(response)));
  ASSERT_EQ(parts.size(), 1u);
  EXPECT_EQ(parts[0].flags, 2u);
  EXPECT_EQ(nlohmann::json::parse(parts[0].payload)["error"]["code"],
            "not_found");

  const std::string torn =
      server.Post("/reprise.v1.Planner/Plan", "application/connect+json", "{}");
  EXPECT_THAT(Unchunked(BodyOf(torn)), HasSubstr("invalid_argument"));
}

TEST(ConnectTest, WatchesARunUntilItEnds) {
  TestServer server;
  Sender sender(server.ingest(), "s1", "run-1");
  ASSERT_TRUE(sender.Greet());
  std::string response;
  std::thread watcher([&] {
    response =
        server.Post("/reprise.v1.Query/WatchRun", "application/connect+json",
                    Enveloped(R"({"runId":"run-1"})"));
  });
  sender.Bye();
  EXPECT_TRUE(sender.Finish().ok());
  watcher.join();

  const std::vector<Envelope> parts = Envelopes(Unchunked(BodyOf(response)));
  ASSERT_GE(parts.size(), 2u);
  EXPECT_THAT(parts[parts.size() - 2].payload, HasSubstr("RUN_STATE_FINISHED"));
  EXPECT_EQ(parts.back().payload, "{}");
}

TEST(ConnectTest, ForgetsAWatcherThatLeft) {
  TestServer server;
  Sender sender(server.ingest(), "s1", "run-1");
  ASSERT_TRUE(sender.Greet());
  const std::string body = Enveloped(R"({"runId":"run-1"})");
  const std::string request =
      "POST /reprise.v1.Query/WatchRun HTTP/1.1\r\nHost: localhost\r\n" +
      server.authorization() +
      "Content-Type: application/connect+json\r\nContent-Length: " +
      std::to_string(body.size()) + "\r\n\r\n" + body;
  const int fd = ConnectTo(server.daemon().http_address());
  ASSERT_GT(::send(fd, request.data(), request.size(), 0), 0);
  char byte = 0;
  ASSERT_EQ(::recv(fd, &byte, 1, 0), 1);  // the stream has begun
  ::close(fd);

  EXPECT_TRUE(Eventually([&] {
    return Get(server, "/metrics")
               .find(
                   "{code=\"canceled\",method=\"/reprise.v1.Query/WatchRun\"} "
                   "1") != std::string::npos;
  }));
}

// ---- Ports ----

TEST(ListenerTest, IsNotHeldUpBySilentClients) {
  TestServer server;
  std::vector<int> silent;
  for (int i = 0; i < 100; ++i) {
    silent.push_back(ConnectTo(server.daemon().http_address()));
  }
  // Three bytes of the preface do not show the protocol yet.
  ASSERT_EQ(::send(silent[0], "PRI", 3, 0), 3);

  EXPECT_THAT(Get(server, "/healthz"), StartsWith("HTTP/1.1 200"));
  (void)server.PutGraph(SmallGraph(), "");

  for (const int fd : silent) ::close(fd);
}

// Both ends of every connection are in this process, so it needs many
// descriptors.
void AllowFiles(rlim_t count) {
  rlimit limit{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &limit), 0);
  ASSERT_GE(limit.rlim_max, count);
  limit.rlim_cur = std::max(limit.rlim_cur, count);
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &limit), 0);
}

bool IsOpen(int fd) {
  char byte = 0;
  return ::recv(fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT) < 0 && errno == EAGAIN;
}

TEST(ListenerTest, MoreSilentClientsThanMayWaitHoldNobodyUp) {
  AllowFiles(4096);
  TestServer server;
  std::vector<int> silent;
  for (int i = 0; i < 700; ++i) {
    silent.push_back(ConnectTo(server.daemon().http_address()));
  }

  EXPECT_THAT(Get(server, "/healthz"), StartsWith("HTTP/1.1 200"));

  // It was answered before the silent clients timed out: the newest are still
  // open.
  EXPECT_GE(std::count_if(silent.begin(), silent.end(), IsOpen), 500);
  for (const int fd : silent) ::close(fd);
}

// ---- Bodies that are being sent ----

TEST(HttpTest, BodiesThatAreBeingSentHaveALimitTogether) {
  TestServer server;
  const std::string head =
      "POST /reprise.v1.Query/ListRuns HTTP/1.1\r\nHost: localhost\r\n"
      "Content-Type: application/json\r\nContent-Length: ";
  const auto whole = std::to_string(kMaxHttpBodyBytes);
  constexpr int kFit = kMaxHttpBodiesBytes / kMaxHttpBodyBytes;
  std::vector<int> sending;
  for (int i = 0; i < kFit + 8; ++i) {
    sending.push_back(ConnectTo(server.daemon().http_address()));
    const std::string request = head + whole + "\r\n\r\n";
    ASSERT_GT(::send(sending.back(), request.data(), request.size(), 0), 0);
  }

  // Those that do not fit are refused before their body arrives.
  EXPECT_TRUE(Eventually([&] {
    return std::count_if(sending.begin(), sending.end(), [](int fd) {
             char bytes[12];
             return ::recv(fd, bytes, sizeof(bytes), MSG_PEEK | MSG_DONTWAIT) ==
                        sizeof(bytes) &&
                    std::string(bytes, sizeof(bytes)) == "HTTP/1.1 503";
           }) == 8;
  }));

  for (const int fd : sending) ::close(fd);
  const std::string body = "{}" + std::string(kMaxHttpBodyBytes / 2, ' ');
  EXPECT_TRUE(Eventually([&] {
    return server
        .Http(head + std::to_string(body.size()) +
              "\r\nConnection: close\r\n\r\n" + body)
        .starts_with("HTTP/1.1 200");
  }));
}

TEST(HttpTest, AnswersAreCompressedForThoseWhoTakeThat) {
  TestServer server;
  const auto metrics = [&](const std::string& accepted) {
    return Get(server, "/metrics",
               "Host: localhost\r\nAccept-Encoding: " + accepted + "\r\n");
  };

  const std::string plain = metrics("br, gzip;q=0");
  const std::string packed = metrics("deflate, gzip");

  EXPECT_THAT(plain, Not(HasSubstr("Content-Encoding")));
  EXPECT_THAT(BodyOf(plain), StartsWith("# HELP"));
  EXPECT_THAT(packed, HasSubstr("Content-Encoding: gzip"));
  EXPECT_THAT(packed, HasSubstr("Vary: Accept-Encoding"));
  EXPECT_THAT(BodyOf(packed), StartsWith("\x1f\x8b"));
  EXPECT_LT(BodyOf(packed).size(), BodyOf(plain).size() / 2);
}

TEST(ListenerTest, ServesEachProtocolOnItsOwnPortInSplitMode) {
  DaemonOptions options;
  options.listen.clear();
  options.grpc_listen = "127.0.0.1:0";
  options.http_listen = "127.0.0.1:0";
  TestServer server(options);

  EXPECT_NE(server.daemon().grpc_address(), server.daemon().http_address());
  (void)server.PutGraph(SmallGraph(), "");
  EXPECT_THAT(Get(server, "/healthz"), StartsWith("HTTP/1.1 200"));
}

}  // namespace
}  // namespace reprise::server
