// The file sink: the file decodes to exactly what was pushed.
#include <gmock/gmock.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include <cstring>
#include <fstream>
#include <sstream>
#include <thread>

#include "profiler/include/reprise_sink.h"
#include "tests/profiler/agent_test.h"

namespace reprise::profiler::testing {
namespace {

using ::testing::HasSubstr;

// Reads sink files; written from reprise_sink.h alone.
struct SinkFile {
  reprise_msg_hello hello = {};
  std::string labels, capabilities;
  std::map<uint32_t, std::string> names;
  std::vector<reprise_slot> records;
  std::vector<std::pair<reprise_msg_graph, std::string>> graphs;
  std::vector<std::string> snapshots;
  std::vector<reprise_msg_bye> byes;
  bool names_came_first = true;

  static SinkFile Read(const std::string& path) {
    std::ifstream in(path, std::ios::binary);
    EXPECT_TRUE(in.good()) << path;
    std::stringstream buffer;
    buffer << in.rdbuf();
    const std::string bytes = buffer.str();

    SinkFile file;
    for (size_t at = 0; at + sizeof(reprise_msg_header) <= bytes.size();) {
      reprise_msg_header header;
      memcpy(&header, bytes.data() + at, sizeof header);
      EXPECT_EQ(header.magic, REPRISE_WIRE_MAGIC);
      if (header.magic != REPRISE_WIRE_MAGIC) return file;
      at += sizeof header;
      if (at + header.size > bytes.size()) break;  // cut off by a kill
      file.Add(header.type, bytes.substr(at, header.size));
      at += (header.size + 7) / 8 * 8;
    }
    return file;
  }

  void Add(uint16_t type, const std::string& body) {
    switch (type) {
      case REPRISE_MSG_HELLO:
        memcpy(&hello, body.data(), sizeof hello);
        labels = body.substr(sizeof hello);
        break;
      case REPRISE_MSG_CAPS:
        capabilities = body;
        break;
      case REPRISE_MSG_DEFS:
        for (size_t at = 0; at + 8 <= body.size();) {
          uint32_t id, n;
          memcpy(&id, body.data() + at, 4);
          memcpy(&n, body.data() + at + 4, 4);
          names[id] = body.substr(at + 8, n);
          at += 8 + (n + 3) / 4 * 4;
        }
        break;
      case REPRISE_SINK_RECORDS:
        EXPECT_EQ(body.size() % sizeof(reprise_slot), 0u);
        for (size_t at = 0; at < body.size(); at += sizeof(reprise_slot)) {
          reprise_slot record;
          memcpy(&record, body.data() + at, sizeof record);
          records.push_back(record);
          EXPECT_EQ(record.sequence, records.size());
          if (record.kind == REPRISE_RECORD_OP_BEGIN &&
              names.count(record.body.op.name) == 0)
            names_came_first = false;
        }
        break;
      case REPRISE_SINK_GRAPH: {
        // The shortest form of the message, without the device's free memory.
        reprise_msg_graph graph = {};
        memcpy(&graph, body.data(), REPRISE_MSG_GRAPH_LEAST);
        graphs.emplace_back(graph, body.substr(REPRISE_MSG_GRAPH_LEAST));
        break;
      }
      case REPRISE_SINK_SNAPSHOT:
        snapshots.push_back(body);
        break;
      case REPRISE_MSG_BYE:
        byes.emplace_back();
        memcpy(&byes.back(), body.data(), sizeof(reprise_msg_bye));
        break;
      default:
        ADD_FAILURE() << "unexpected entry " << type;
    }
  }

  uint64_t Count(uint16_t kind) const {
    uint64_t n = 0;
    for (const reprise_slot& record : records) n += record.kind == kind;
    return n;
  }
};

class SinkTest : public AgentTest {
 protected:
  reprise_status StartSink(uint32_t slots = 4096) {
    const std::string sink = "file:" + path_;
    reprise_config config = {};
    config.struct_size = sizeof config;
    config.ring_slots = slots;
    config.sink_path = sink.c_str();
    config.labels = "name=sunk";
    return reprise_start(&config);
  }

  const std::string path_ = folder_ + "/run.reprise";
};

TEST_F(SinkTest, AFileHoldsTheWholeSession) {
  EXPECT_EQ(StartSink(), REPRISE_DEGRADED);  // works, but without plans

  for (uint64_t step = 0; step < 100; ++step) {
    reprise_step(step);
    for (uint64_t op = 0; op < 20; ++op) {
      reprise_op_begin(op, Intern("op " + std::to_string(op)), 0, 0, 0, 0);
      reprise_op_end(op);
    }
  }
  uint64_t graph = 0;
  reprise_want want = {};
  want.struct_size = sizeof want;
  want.budget = "1GiB";
  want.capabilities = "tape";
  EXPECT_EQ(reprise_graph_submit("{}", 2, &want, &graph), REPRISE_INERT);
  EXPECT_EQ(reprise_snapshot("pickle", 6), REPRISE_OK);
  EXPECT_EQ(reprise_flush(10000), REPRISE_OK);
  EXPECT_EQ(reprise_stop(), REPRISE_OK);

  const SinkFile file = SinkFile::Read(path_);
  EXPECT_EQ(file.hello.pid, static_cast<uint32_t>(getpid()));
  EXPECT_EQ(file.labels, "name=sunk");
  EXPECT_THAT(file.capabilities, HasSubstr("cupti=0"));
  EXPECT_EQ(file.Count(REPRISE_RECORD_STEP), 100u);
  EXPECT_EQ(file.Count(REPRISE_RECORD_OP_BEGIN), 2000u);
  EXPECT_EQ(file.Count(REPRISE_RECORD_OP_END), 2000u);
  EXPECT_TRUE(file.names_came_first);
  for (const reprise_slot& record : file.records) {
    if (record.kind != REPRISE_RECORD_OP_BEGIN) continue;
    EXPECT_EQ(file.names.at(record.body.op.name),
              "op " + std::to_string(record.body.op.op));
  }
  ASSERT_EQ(file.graphs.size(), 1u);
  EXPECT_EQ(file.graphs[0].first.graph_id, graph);
  using namespace std::string_literals;
  EXPECT_EQ(file.graphs[0].second, "1GiB\0tape\0{}"s);
  EXPECT_EQ(file.snapshots, std::vector<std::string>{"pickle"});
  ASSERT_EQ(file.byes.size(), 1u);
  EXPECT_EQ(file.byes[0].pushed, file.records.size());
  EXPECT_EQ(file.byes[0].dropped, 0u);
}

TEST_F(SinkTest, ThePushersSpillAHalfFullRingThemselves) {
  StartSink(4096);

  for (uint64_t i = 0; i < 100000; ++i)
    reprise_alloc(i, 1, 0, 0, REPRISE_ALLOC, 0);
  EXPECT_EQ(Capabilities().dropped, 0u);
  reprise_stop();

  EXPECT_EQ(SinkFile::Read(path_).Count(REPRISE_RECORD_ALLOC), 100000u);
}

TEST_F(SinkTest, ManyWritersSpillTogether) {
  constexpr uint64_t kEach = 20000;
  StartSink(1u << 15);

  std::vector<std::thread> writers;
  for (uint64_t w = 0; w < 4; ++w)
    writers.emplace_back([w] {
      for (uint64_t i = 0; i < kEach; ++i)
        reprise_alloc(w, 1, 0, 0, REPRISE_ALLOC, 0);
    });
  for (std::thread& writer : writers) writer.join();
  const uint64_t dropped = Capabilities().dropped;
  reprise_stop();

  const SinkFile file = SinkFile::Read(path_);
  uint64_t lost = 0;
  for (const reprise_slot& record : file.records)
    if (record.kind == REPRISE_RECORD_LOSS) lost += record.body.loss.count;
  EXPECT_EQ(lost, dropped);
  EXPECT_EQ(file.Count(REPRISE_RECORD_ALLOC) + lost, 4 * kEach);
}

TEST_F(SinkTest, TheEnvironmentNamesTheFile) {
  setenv("REPRISE_SINK", ("file:" + path_).c_str(), 1);
  EXPECT_EQ(reprise_start(nullptr), REPRISE_DEGRADED);
  unsetenv("REPRISE_SINK");
  reprise_stop();

  EXPECT_EQ(SinkFile::Read(path_).byes.size(), 1u);
}

TEST_F(SinkTest, AnExistingFileIsNeverOverwritten) {
  std::ofstream(path_) << "precious";

  EXPECT_EQ(StartSink(), REPRISE_DEGRADED);
  reprise_stop();

  std::string kept;
  std::ifstream(path_) >> kept;
  EXPECT_EQ(kept, "precious");
  const std::string own = path_ + "." + std::to_string(getpid());
  EXPECT_EQ(SinkFile::Read(own).byes.size(), 1u);
}

TEST_F(SinkTest, AForkedChildWritesAFileOfItsOwn) {
  StartSink();
  reprise_alloc(1, 1, 0, 0, REPRISE_ALLOC, 0);
  const pid_t child = fork();
  if (child == 0) {
    reprise_step(1);  // inert: must not touch the parent's file
    if (StartSink() != REPRISE_DEGRADED) _exit(1);
    for (int i = 0; i < 5; ++i) reprise_alloc(1, 1, 0, 0, REPRISE_ALLOC, 0);
    _exit(reprise_stop() == REPRISE_OK ? 0 : 2);
  }
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
  reprise_stop();

  EXPECT_EQ(SinkFile::Read(path_).Count(REPRISE_RECORD_ALLOC), 1u);
  EXPECT_EQ(SinkFile::Read(path_ + "." + std::to_string(child))
                .Count(REPRISE_RECORD_ALLOC),
            5u);
}

TEST_F(SinkTest, WhatWasFlushedSurvivesAKill) {
  const pid_t child = fork();
  if (child == 0) {
    StartSink();
    for (int i = 0; i < 777; ++i) reprise_alloc(1, 1, 0, 0, REPRISE_ALLOC, 0);
    reprise_flush(10000);
    kill(getpid(), SIGKILL);
  }
  int status = 0;
  waitpid(child, &status, 0);

  const SinkFile file = SinkFile::Read(path_);
  EXPECT_EQ(file.Count(REPRISE_RECORD_ALLOC), 777u);
  EXPECT_TRUE(file.byes.empty());
}

TEST_F(SinkTest, AWriteThatFailsLeavesACompleteFileAndCountsTheRest) {
  const pid_t child = fork();
  if (child == 0) {
    // Acts like a full disk: a limit on the file size; writes beyond it fail
    // with EFBIG.
    signal(SIGXFSZ, SIG_IGN);
    StartSink(4096);
    const rlimit limit = {100000, 100000};
    setrlimit(RLIMIT_FSIZE, &limit);
    for (int i = 0; i < 20000; ++i) {
      reprise_alloc(1, 1, 0, 0, REPRISE_ALLOC, 0);
      if (i % 1000 == 0) reprise_step(1);
    }
    const reprise_caps caps = Capabilities();
    const bool told = strstr(caps.why, "sink: cannot write") != nullptr;
    _exit(told && caps.dropped > 0 ? 0 : 1);
  }
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);

  const SinkFile file = SinkFile::Read(path_);
  EXPECT_GT(file.records.size(), 1000u);
  EXPECT_LE(std::filesystem::file_size(path_), 100000u);
}

TEST_F(SinkTest, AFileThatCannotBeMadeIsNamed) {
  setenv("REPRISE_SINK", "file:/nonexistent/run.reprise", 1);
  EXPECT_EQ(reprise_start(nullptr), REPRISE_INERT);
  EXPECT_THAT(Capabilities().why,
              HasSubstr("sink /nonexistent/run.reprise: cannot create"));
  setenv("REPRISE_SINK", "tcp:127.0.0.1", 1);
  EXPECT_EQ(reprise_start(nullptr), REPRISE_INERT);
  EXPECT_THAT(Capabilities().why, HasSubstr("must be file:PATH"));
  unsetenv("REPRISE_SINK");
}

}  // namespace
}  // namespace reprise::profiler::testing
