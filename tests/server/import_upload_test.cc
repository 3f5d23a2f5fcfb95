// SPDX-License-Identifier: Apache-2.0
//
// Files uploaded from the page: POST /import.
#include "server/net/import_upload.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/str_cat.h"
#include "formats/convert/graph_json.h"
#include "server/net/routes.h"
#include "tests/formats/snapshot_file.h"
#include "tests/server/server_harness.h"

namespace reprise::server {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

// Adds the server's token to a request that a test writes to a socket itself;
// TestServer::Http adds it on its own.
std::string WithToken(const TestServer& server, std::string head) {
  return head.insert(head.find("\r\n") + 2, server.authorization());
}

std::string Head(const std::string& name, const std::string& more) {
  return StrCat("POST /import?name=", name,
                " HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
                "Content-Type: application/octet-stream\r\n",
                more, "\r\n");
}

std::string Length(size_t bytes) {
  return StrCat("Content-Length: ", bytes, "\r\n");
}

std::string Send(const TestServer& server, const std::string& name,
                 const std::string& body) {
  return server.Http(Head(name, Length(body.size())) + body);
}

// Parses the last line of the answer.
nlohmann::json Outcome(const std::string& response) {
  const size_t error = response.rfind("{\"error\":");
  const size_t run = response.rfind("{\"run\":");
  const size_t at = error == std::string::npos ? run : error;
  if (at == std::string::npos) return nlohmann::json();
  return nlohmann::json::parse(
      response.substr(at, response.find('\n', at) - at), nullptr, false);
}

std::string ErrorOf(const std::string& response) {
  const nlohmann::json said = Outcome(response);
  return said.contains("error") ? said["error"]["message"].get<std::string>()
                                : "no error: " + response;
}

std::string RunOf(const std::string& response) {
  const nlohmann::json said = Outcome(response);
  EXPECT_TRUE(said.contains("run")) << response;
  return said.contains("run") ? said["run"]["runId"].get<std::string>() : "";
}

// 3000 bytes exist at the start, then 1000 and 2000 are allocated: 6000 at the
// peak.
std::string SnapshotFile() {
  return formats::Pickle(5000,
                         {formats::Event("alloc", 512, 1000, 1),
                          formats::Event("alloc", 4096, 2000, 2),
                          formats::Event("free_completed", 512, 1000, 3)});
}

// A trace as torch.profiler writes it; `space` pads it to any size.
std::string TraceFile(size_t space = 0) {
  const auto op = [](const char* name, int at, int length) {
    return StrCat(R"({"ph":"X","cat":"cpu_op","name":")", name,
                  R"(","pid":1,"tid":1,"ts":)", at, R"(,"dur":)", length,
                  R"(,"args":{}},)", "\n");
  };
  const auto memory = [](int at, int bytes, int address, int total) {
    return StrCat(R"({"ph":"i","cat":"cpu_instant_event","name":"[memory]",)",
                  R"("pid":1,"tid":1,"ts":)", at, R"(,"args":{"Bytes":)", bytes,
                  R"(,"Addr":)", address,
                  R"(,"Device Id":0,"Device Type":1,"Total Allocated":)", total,
                  "}},\n");
  };
  return StrCat(R"({"schemaVersion":1,"traceEvents":[)",
                std::string(space, ' '), op("aten::linear", 10, 100),
                memory(30, 400, 1, 500), op("aten::gelu", 200, 100),
                memory(220, 800, 3, 1300), memory(230, -400, 1, 900),
                R"({"ph":"M","name":"end"}]})");
}

int64_t Runs(const TestServer& server) {
  return server.CountRows("SELECT count(*) FROM runs");
}

// Counts the open files of uploads, which are unlinked.
int64_t OpenFiles() {
  int64_t count = 0;
  for (const auto& one : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code gone;
    const auto to = std::filesystem::read_symlink(one.path(), gone).string();
    count += to.find("/import-") != std::string::npos ? 1 : 0;
  }
  return count;
}

void SendAll(int fd, const std::string& bytes) {
  ASSERT_EQ(::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL),
            static_cast<ssize_t>(bytes.size()));
}

std::string ReadAll(int fd) {
  std::string text;
  char block[4096];
  for (ssize_t n = 1; n > 0;) {
    n = ::recv(fd, block, sizeof(block), 0);
    if (n > 0) text.append(block, static_cast<size_t>(n));
  }
  return text;
}

// An upload whose first part arrives and whose rest never does.
std::string Slow() {
  return Head("slow", Length(1 << 20)) + std::string(300'000, ' ');
}

// ---- What becomes of a file ----

TEST(ImportUploadTest, ASnapshotBecomesARun) {
  TestServer server;

  const std::string response = Send(server, "s.pickle", SnapshotFile());

  EXPECT_THAT(response, StartsWith("HTTP/1.1 200"));
  EXPECT_THAT(response, HasSubstr("application/x-ndjson"));
  const v1::Run run = server.GetRun(RunOf(response));
  EXPECT_EQ(run.name(), "s.pickle");
  EXPECT_EQ(run.state(), v1::RUN_STATE_FINISHED);
  EXPECT_EQ(run.graph_id(), "");
  EXPECT_EQ(Outcome(response)["run"]["format"], "memory snapshot");
  // The answer may be read before the server has closed the file.
  EXPECT_TRUE(Eventually([] { return OpenFiles() == 0; }));
}

TEST(ImportUploadTest, ATraceBecomesARunThatCanBePlanned) {
  TestServer server;

  const std::string response = Send(server, "trace.json", TraceFile());

  const v1::Run run = server.GetRun(RunOf(response));
  ASSERT_NE(run.graph_id(), "");
  EXPECT_EQ(Outcome(response)["run"]["ops"], 3);  // plus the start of the step
  v1::PlanRequest request = RequestFor(run.graph_id(), "1x");
  request.set_run_id(run.run_id());
  EXPECT_TRUE(server.Plan(request).feasible());
  EXPECT_NE(server.GetRun(run.run_id()).plan_id(), "");
}

TEST(ImportUploadTest, AStepGraphBecomesARunWithNothingMeasured) {
  TestServer server;

  for (const bool proto : {false, true}) {
    const std::string response =
        Send(server, proto ? "step.pb" : "step.graph.json",
             proto ? SmallGraph().SerializeAsString()
                   : formats::WriteGraphText(SmallGraph()));

    const v1::Run run = server.GetRun(RunOf(response));
    EXPECT_EQ(run.steps(), 0U);
    EXPECT_EQ(run.state(), v1::RUN_STATE_FINISHED);
    EXPECT_EQ(run.graph_id(), server.PutGraph(SmallGraph(), ""));
  }
}

TEST(ImportUploadTest, AFileOfManyPartsArrivesWhole) {
  TestServer server;
  const std::string file = TraceFile(/*space=*/3 << 20);

  EXPECT_NE(RunOf(Send(server, "large.json", file)), "");

  // The same in chunks, without a length, and with "Expect: 100-continue".
  std::string chunked;
  for (size_t at = 0; at < file.size(); at += 700'000) {
    const std::string chunk = file.substr(at, 700'000);
    char size[16];
    std::snprintf(size, sizeof(size), "%zx\r\n", chunk.size());
    chunked += size + chunk + "\r\n";
  }
  const std::string response = server.Http(
      Head("c.json", "Transfer-Encoding: chunked\r\nExpect: 100-continue\r\n") +
      chunked + "0\r\n\r\n");
  EXPECT_THAT(response,
              StartsWith("HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200"));
  EXPECT_NE(RunOf(response), "");
}

TEST(ImportUploadTest, ANameIsShownAndNeverOpened) {
  TestServer server;
  const auto name = [&](const std::string& sent) {
    return server.GetRun(RunOf(Send(server, sent, TraceFile()))).name();
  };

  EXPECT_EQ(name("..%2F..%2Fetc%2Fpasswd"), "passwd");
  EXPECT_EQ(name("C%3A%5Cme%5Cstep+1.json"), "step 1.json");
  EXPECT_EQ(name("a%0d%0aX%3A%20y%00"), "aX: y");
  EXPECT_EQ(name("%ff%c3%a4"), "\xef\xbf\xbd\xc3\xa4");
  EXPECT_EQ(name(std::string(3000, 'n')).size(), 200U);
  EXPECT_EQ(name(""), "file");
}

// ---- What is wrong ----

TEST(ImportUploadTest, AHostileFileIsOneSentenceThatNamesIt) {
  TestServer server;
  const std::string snapshot = SnapshotFile();
  struct Case {
    std::string file;
    const char* said;
  };
  const Case cases[] = {
      {"", "is empty"},
      {"hello", "neither a memory snapshot"},
      {std::string(5000, '\xff'), "neither a memory snapshot"},
      {snapshot.substr(0, snapshot.size() / 2), "the pickle ends too early"},
      {"\x80\x04\x8c\x02os\x8c\x06system\x93.", "wants to run code"},
      {R"({"a":1})", "no traceEvents"},
      {R"({"traceEvents":[)" + std::string(500, '['), "nests more than"},
      {R"({"traceEvents":[{"ph":"X")", "byte "},
      {R"({"format":"reprise.graph/1","static_bytes":0,"required":[],)"
       R"("storages":[],"ops":7})",
       "ops: must be a list"},
      {R"({"format":"reprise.plan/1"})", "is a plan"},
      {std::string("\x1f\x8b\x08\x00\x00\x00", 6), "byte 0"},
  };

  for (const Case& one : cases) {
    const std::string response = Send(server, "bad%20file", one.file);
    EXPECT_THAT(response, StartsWith("HTTP/1.1 200"));
    EXPECT_THAT(ErrorOf(response), StartsWith("bad file: "));
    EXPECT_THAT(ErrorOf(response), HasSubstr(one.said));
    EXPECT_THAT(ErrorOf(response), Not(HasSubstr("/proc/")));
    EXPECT_THAT(response, EndsWith("0\r\n\r\n"));
  }
  EXPECT_EQ(Runs(server), 0);
  EXPECT_TRUE(Eventually([] { return OpenFiles() == 0; }));
}

TEST(ImportUploadTest, AnUploadThatIsCutOffLeavesNothing) {
  TestServer server;
  const std::string half =
      WithToken(server, Head("cut.json", Length(2 << 20))) +
      TraceFile(/*space=*/1 << 20).substr(0, 1 << 20);

  // More often than there are import slots.
  for (int i = 0; i < 3 * kMaxImports; ++i) {
    const int fd = ConnectTo(server.daemon().http_address());
    SendAll(fd, half);
    ASSERT_TRUE(Eventually([] { return OpenFiles() > 0; }));
    ::close(fd);
    ASSERT_TRUE(Eventually([] { return OpenFiles() == 0; }));
  }

  EXPECT_EQ(Runs(server), 0);
  EXPECT_NE(RunOf(Send(server, "whole.json", TraceFile())), "");
}

TEST(ImportUploadTest, TooLargeIsSaidBeforeItIsSent) {
  TestServer server;

  const std::string response =
      server.Http(Head("big.pickle", Length(size_t{5} << 30)));

  EXPECT_THAT(response, StartsWith("HTTP/1.1 413"));
  EXPECT_THAT(response,
              HasSubstr("big.pickle: is larger than 4.0 GiB, the most that is "
                        "taken here; use `reprise import`"));
}

TEST(ImportUploadTest, ABodyOfUnknownLengthIsCutAtTheLimit) {
  TestServer server;
  const auto store = Store::Open({.path = server.folder() + "/other.db"});
  ASSERT_TRUE(store.ok());
  ImportUploads imports(
      server.folder(), server.channel(), **store,
      [](const std::string&, const Access&) { return Caller{}; },
      /*max_bytes=*/300'000);
  Metrics metrics;
  const MethodTable methods(metrics);
  const Tokens tokens{Secret(server.token())};
  const Routes routes{methods, {}, {}, {}, tokens};
  HttpServer http([](const HttpRequest&, std::shared_ptr<HttpReply>) {},
                  MakeUploadOpener(routes, imports, nullptr));
  int fds[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
  http.Adopt(fds[0]);

  const std::string chunk(100'000, ' ');
  SendAll(fds[1],
          WithToken(server, Head("endless", "Transfer-Encoding: chunked\r\n")));
  for (int i = 0; i < 4; ++i) SendAll(fds[1], "186a0\r\n" + chunk + "\r\n");
  const std::string response = ReadAll(fds[1]);

  EXPECT_THAT(response, StartsWith("HTTP/1.1 413"));
  EXPECT_THAT(response, HasSubstr("endless: is larger than"));
  ::close(fds[1]);
  ASSERT_TRUE(Eventually([] { return OpenFiles() == 0; }));
  http.Stop();
}

TEST(ImportUploadTest, MoreAtOnceThanThereArePlacesWait) {
  TestServer server;
  std::vector<int> open;
  for (int i = 0; i < kMaxImports; ++i) {
    open.push_back(ConnectTo(server.daemon().http_address()));
    SendAll(open.back(), WithToken(server, Slow()));
    ASSERT_TRUE(Eventually([&] { return OpenFiles() == i + 1; }));
  }

  const std::string response = Send(server, "third.json", TraceFile());

  EXPECT_THAT(response, StartsWith("HTTP/1.1 429"));
  EXPECT_THAT(response, HasSubstr("third.json: 2 files are being imported "
                                  "already; try again when one is done"));
  for (const int fd : open) ::close(fd);
  ASSERT_TRUE(Eventually([] { return OpenFiles() == 0; }));
  EXPECT_NE(RunOf(Send(server, "third.json", TraceFile())), "");
}

TEST(ImportUploadTest, AServerThatStopsDoesNotWaitForAnUpload) {
  auto server = std::make_unique<TestServer>();
  const int fd = ConnectTo(server->daemon().http_address());
  SendAll(fd, WithToken(*server, Slow()));
  ASSERT_TRUE(Eventually([] { return OpenFiles() == 1; }));

  server.reset();

  EXPECT_EQ(ReadAll(fd), "");
  EXPECT_EQ(OpenFiles(), 0);
  ::close(fd);
}

// ---- Who may send ----

TEST(ImportUploadTest, OtherSitesCannotSendAFile) {
  TestServer server;
  const auto post = [&](const std::string& host, const std::string& more) {
    return server.Http(StrCat("POST /import?name=x HTTP/1.1\r\nHost: ", host,
                              "\r\nConnection: close\r\n", more,
                              Length(TraceFile().size()), "\r\n", TraceFile()));
  };
  const std::string type = "Content-Type: application/octet-stream\r\n";

  EXPECT_THAT(post("localhost", type + "Origin: http://evil.example\r\n"),
              StartsWith("HTTP/1.1 403"));
  EXPECT_THAT(post("localhost", type + "Origin: null\r\n"),
              StartsWith("HTTP/1.1 403"));
  EXPECT_THAT(post("evil.example", type), StartsWith("HTTP/1.1 403"));
  // A content type that another page's form can send without asking.
  EXPECT_THAT(post("localhost", "Content-Type: text/plain\r\n"),
              StartsWith("HTTP/1.1 415"));
  EXPECT_THAT(
      post("localhost", "Content-Type: multipart/form-data; boundary=b\r\n"),
      StartsWith("HTTP/1.1 415"));
  EXPECT_THAT(post("localhost", ""), StartsWith("HTTP/1.1 415"));
  EXPECT_THAT(server.Http("OPTIONS /import HTTP/1.1\r\nHost: localhost\r\n"
                          "Connection: close\r\n"
                          "Origin: http://localhost:1234\r\n\r\n"),
              Not(HasSubstr("Access-Control")));
  EXPECT_EQ(Runs(server), 0);
}

}  // namespace
}  // namespace reprise::server
