// The ring, from its reader's side.
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <set>
#include <thread>

#include "tests/profiler/agent_test.h"

namespace reprise::profiler::testing {
namespace {

class RingTest : public AgentTest {};

// Maps the first page of this process's ring, as a collector does.
const reprise_ring_header* MapOwnHeader() {
  for (int fd = 0; fd < 1024; ++fd) {
    char link[256] = {};
    const std::string path = "/proc/self/fd/" + std::to_string(fd);
    if (readlink(path.c_str(), link, sizeof link - 1) <= 0) continue;
    if (strstr(link, "memfd:reprise-ring") == nullptr) continue;
    void* page =
        mmap(nullptr, REPRISE_RING_HEADER_BYTES, PROT_READ, MAP_SHARED, fd, 0);
    if (page != MAP_FAILED)
      return static_cast<const reprise_ring_header*>(page);
  }
  return nullptr;
}

TEST_F(RingTest, SaysWhereTheJobIsWithoutARecord) {
  Collector collector(socket_, shelf_);
  Start();
  const reprise_ring_header* header = MapOwnHeader();
  ASSERT_NE(header, nullptr);

  reprise_step(41);
  const uint64_t pushed = header->head;
  reprise_step_under(0xa, 0xb);
  reprise_phase(2);
  reprise_at(6);

  EXPECT_EQ(header->place.step, 41u);
  EXPECT_NE(header->place.step_ns, 0u);
  EXPECT_EQ(header->place.graph_id, 0xau);
  EXPECT_EQ(header->place.plan_id, 0xbu);
  EXPECT_EQ(header->place.phase, 2u);
  EXPECT_EQ(header->place.op, 6u);
  EXPECT_EQ(header->head, pushed) << "stores, no records";
  reprise_step(42);
  EXPECT_EQ(header->place.step, 42u);
  for (const uint64_t word : {header->place.graph_id, header->place.plan_id,
                              header->place.phase, header->place.op})
    EXPECT_EQ(word, 0u) << "of the step before";
}

TEST_F(RingTest, EveryKindArrivesWithItsFields) {
  Collector collector(socket_, shelf_);
  Start();
  const uint32_t relu = Intern("aten::relu");
  const uint32_t shapes = Intern("[8, 16]");

  reprise_step(41);
  reprise_op_begin(7, relu, shapes, 3, -1, 99);
  reprise_phase(2);
  reprise_alloc(0x1000, 512, 1, 5, REPRISE_ALLOC, 1234);
  reprise_op_end(7);
  reprise_oom(1, 10, 20, 30);
  reprise_plan_state(77, REPRISE_PLAN_REFUSED, relu);
  reprise_verify_report verify = {};
  verify.struct_size = sizeof verify;
  verify.flags = REPRISE_VERIFY_BITWISE;
  verify.step = 41;
  verify.plan_id = 77;
  verify.checked = 9;
  verify.differing = 2;
  verify.first_name = relu;
  reprise_verify(&verify);
  ASSERT_EQ(reprise_flush(10000), REPRISE_OK);

  const Session session = collector.OnlySession();
  std::map<uint16_t, reprise_slot> by_kind;
  for (const reprise_slot& record : session.records) {
    by_kind[record.kind] = record;
    EXPECT_EQ(record.clock_id, REPRISE_CLOCK_MONOTONIC);
    EXPECT_EQ(record.thread, static_cast<uint32_t>(syscall(SYS_gettid)));
    EXPECT_NE(record.ts_ns, 0u);
  }
  EXPECT_EQ(by_kind[REPRISE_RECORD_STEP].body.step.step, 41u);
  const reprise_body_op& op = by_kind[REPRISE_RECORD_OP_BEGIN].body.op;
  EXPECT_EQ(op.op, 7u);
  EXPECT_EQ(op.parent, 3u);
  EXPECT_EQ(op.seq_nr, -1);
  EXPECT_EQ(op.fwd_thread, 99u);
  EXPECT_EQ(session.names.at(op.name), "aten::relu");
  EXPECT_EQ(session.names.at(op.shapes), "[8, 16]");
  EXPECT_EQ(by_kind[REPRISE_RECORD_OP_END].body.op.op, 7u);
  const reprise_body_alloc& alloc = by_kind[REPRISE_RECORD_ALLOC].body.alloc;
  EXPECT_EQ(by_kind[REPRISE_RECORD_ALLOC].ts_ns, 1234u);
  EXPECT_EQ(alloc.address, 0x1000u);
  EXPECT_EQ(alloc.bytes, 512);
  EXPECT_EQ(alloc.device, 1);
  EXPECT_EQ(alloc.stream, 5u);
  EXPECT_EQ(alloc.op, 7u);
  EXPECT_EQ(alloc.what, REPRISE_ALLOC);
  EXPECT_EQ(by_kind[REPRISE_RECORD_ALLOC].flags, 2u);  // the backward pass
  const reprise_body_oom& oom = by_kind[REPRISE_RECORD_OOM].body.oom;
  EXPECT_EQ(oom.asked, 10u);
  EXPECT_EQ(oom.total, 20u);
  EXPECT_EQ(oom.free_bytes, 30u);
  EXPECT_EQ(oom.device, 1);
  const auto& state = by_kind[REPRISE_RECORD_PLAN_STATE].body.plan_state;
  EXPECT_EQ(state.plan_id, 77u);
  EXPECT_EQ(state.state, static_cast<uint32_t>(REPRISE_PLAN_REFUSED));
  EXPECT_EQ(state.why_name, relu);
  const auto& check = by_kind[REPRISE_RECORD_VERIFY].body.verify;
  EXPECT_EQ(check.step, 41u);
  EXPECT_EQ(check.plan_id, 77u);
  EXPECT_EQ(check.flags, static_cast<uint32_t>(REPRISE_VERIFY_BITWISE));
  EXPECT_EQ(check.checked, 9u);
  EXPECT_EQ(check.differing, 2u);
  EXPECT_EQ(check.first_name, relu);
  EXPECT_GT(by_kind[REPRISE_RECORD_CLOCK].body.clock.realtime, 0u);
  EXPECT_GT(by_kind[REPRISE_RECORD_CLOCK].body.clock.boottime, 0u);
}

TEST_F(RingTest, AnAppliedPlanSaysWhatItTakes) {
  Collector collector(socket_, shelf_);
  Start();

  reprise_plan_applied(77, 5000, 1024);
  ASSERT_EQ(reprise_flush(10000), REPRISE_OK);

  const Session session = collector.OnlySession();
  const auto found = std::find_if(
      session.records.begin(), session.records.end(), [](const auto& record) {
        return record.kind == REPRISE_RECORD_PLAN_STATE;
      });
  ASSERT_NE(found, session.records.end());
  const reprise_body_plan_state& state = found->body.plan_state;
  EXPECT_EQ(state.plan_id, 77u);
  EXPECT_EQ(state.state, static_cast<uint32_t>(REPRISE_PLAN_APPLIED));
  EXPECT_EQ(state.own_ns, 5000u);
  EXPECT_EQ(state.peak_bytes, 1024u);
}

TEST_F(RingTest, AStepReportTakesTwoRecordsInARow) {
  Collector collector(socket_, shelf_);
  Start();

  reprise_step_report report = {};
  report.struct_size = sizeof report;
  report.flags = REPRISE_STEP_PLANNED;
  report.step = 5;
  report.plan_id = 6;
  report.step_ns = 7;
  report.peak_bytes = 8;
  report.reserved_bytes = 9;
  report.device_bytes = 10;
  report.recomputed = 11;
  report.mismatches = 12;
  reprise_step_done(&report);
  ASSERT_EQ(reprise_flush(10000), REPRISE_OK);

  const Session session = collector.OnlySession();
  ASSERT_GE(session.records.size(), 2u);
  const reprise_slot& done = session.records[session.records.size() - 2];
  const reprise_slot& memory = session.records.back();
  ASSERT_EQ(done.kind, REPRISE_RECORD_STEP_DONE);
  ASSERT_EQ(memory.kind, REPRISE_RECORD_STEP_MEM);
  EXPECT_EQ(done.body.step_done.step, 5u);
  EXPECT_EQ(done.body.step_done.plan_id, 6u);
  EXPECT_EQ(done.body.step_done.step_ns, 7u);
  EXPECT_EQ(done.body.step_done.peak_bytes, 8u);
  EXPECT_EQ(done.body.step_done.flags,
            static_cast<uint32_t>(REPRISE_STEP_PLANNED));
  EXPECT_EQ(done.body.step_done.mismatches, 12u);
  EXPECT_EQ(memory.body.step_mem.step, 5u);
  EXPECT_EQ(memory.body.step_mem.reserved_bytes, 9u);
  EXPECT_EQ(memory.body.step_mem.device_bytes, 10u);
  EXPECT_EQ(memory.body.step_mem.plan_id, 6u);
  EXPECT_EQ(memory.body.step_mem.recomputed, 11u);
}

TEST_F(RingTest, AReportOfAnOlderCallerIsReadOnlyAsFarAsItGoes) {
  Collector collector(socket_, shelf_);
  Start();

  reprise_step_report report = {};
  report.struct_size = offsetof(reprise_step_report, peak_bytes);
  report.step = 5;
  report.step_ns = 7;
  report.peak_bytes = 8;
  reprise_step_done(&report);
  report.struct_size = 0;  // does not cover any field
  reprise_step_done(&report);
  reprise_step_done(nullptr);
  ASSERT_EQ(reprise_flush(10000), REPRISE_OK);

  const Session session = collector.OnlySession();
  EXPECT_EQ(session.Count(REPRISE_RECORD_STEP_DONE), 1u);
  const reprise_slot& done = session.records[session.records.size() - 2];
  EXPECT_EQ(done.body.step_done.step_ns, 7u);
  EXPECT_EQ(done.body.step_done.peak_bytes, 0u);
}

TEST_F(RingTest, AnAllocationBelongsToTheInnermostOpOfItsThread) {
  Collector collector(socket_, shelf_);
  Start();

  const auto alloc = [](uint64_t ptr) {
    reprise_alloc(ptr, 1, 0, 0, REPRISE_ALLOC, 0);
  };
  alloc(1);  // outside: 0
  reprise_op_begin(10, 0, 0, 0, 0, 0);
  reprise_op_begin(11, 0, 0, 10, 0, 0);
  alloc(2);  // 11
  reprise_op_end(11);
  alloc(3);                               // 10
  std::thread([&] { alloc(4); }).join();  // another thread: 0
  reprise_op_begin(12, 0, 0, 10, 0, 0);   // never ended: an exception
  reprise_op_end(10);
  alloc(5);  // outside again: 0
  for (uint64_t op = 20; op < 40; ++op) reprise_op_begin(op, 0, 0, 0, 0, 0);
  reprise_step(1);
  alloc(6);  // a step ends every open op: 0
  ASSERT_EQ(reprise_flush(10000), REPRISE_OK);

  std::map<uint64_t, uint64_t> op_of;
  for (const reprise_slot& record : collector.OnlySession().records)
    if (record.kind == REPRISE_RECORD_ALLOC)
      op_of[record.body.alloc.address] = record.body.alloc.op;
  const std::map<uint64_t, uint64_t> expected = {{1, 0}, {2, 11}, {3, 10},
                                                 {4, 0}, {5, 0},  {6, 0}};
  EXPECT_EQ(op_of, expected);
}

// The smallest ring wraps around many times. Writers do not wait, so records
// that do not fit are dropped, and the counts must add up.
class WritersTest : public RingTest,
                    public ::testing::WithParamInterface<int> {};

TEST_P(WritersTest, WhatWasPushedArrivesOrIsCountedAsLost) {
  constexpr uint64_t kEach = 20000;
  const auto begin = std::chrono::steady_clock::now();
  Collector collector(socket_, shelf_);
  Start(4096);

  std::vector<std::thread> writers;
  for (int w = 0; w < GetParam(); ++w)
    writers.emplace_back([w] {
      for (uint64_t i = 0; i < kEach; ++i)
        reprise_alloc(static_cast<uint64_t>(w), static_cast<int64_t>(i), 0, 0,
                      REPRISE_ALLOC, 0);
    });
  for (std::thread& writer : writers) writer.join();
  ASSERT_EQ(reprise_flush(20000), REPRISE_OK);

  const Session session = collector.OnlySession();
  // In order per writer, none twice, none torn.
  std::map<uint64_t, int64_t> last;
  for (size_t i = 0; i < session.records.size(); ++i) {
    const reprise_slot& record = session.records[i];
    ASSERT_EQ(record.sequence, i + 1);
    if (record.kind != REPRISE_RECORD_ALLOC) continue;
    const auto [it, fresh] =
        last.emplace(record.body.alloc.address, record.body.alloc.bytes);
    if (fresh) continue;
    ASSERT_LT(it->second, record.body.alloc.bytes);
    it->second = record.body.alloc.bytes;
  }
  const uint64_t offered = kEach * static_cast<uint64_t>(GetParam());
  const uint64_t counted = session.Count(REPRISE_RECORD_ALLOC) + session.Lost();
  EXPECT_GE(counted, offered);
  // The agent's own CLOCK record, one a second, may also find the ring full.
  const auto took = std::chrono::duration_cast<std::chrono::seconds>(
      std::chrono::steady_clock::now() - begin);
  EXPECT_LE(counted, offered + static_cast<uint64_t>(took.count()) + 1);
  EXPECT_EQ(Capabilities().dropped, session.Lost());
  EXPECT_EQ(Capabilities().pushed, session.records.size());
}

TEST_P(WritersTest, NothingIsLostWhileTheRingHasRoom) {
  constexpr uint64_t kEach = 10000;
  Collector collector(socket_, shelf_);
  Start(1u << 16);

  std::vector<std::thread> writers;
  for (int w = 0; w < GetParam(); ++w)
    writers.emplace_back([w] {
      for (uint64_t i = 0; i < kEach; ++i)
        reprise_alloc(static_cast<uint64_t>(w), static_cast<int64_t>(i), 0, 0,
                      REPRISE_ALLOC, 0);
    });
  for (std::thread& writer : writers) writer.join();
  ASSERT_EQ(reprise_flush(20000), REPRISE_OK);

  const Session session = collector.OnlySession();
  EXPECT_EQ(session.Count(REPRISE_RECORD_ALLOC),
            kEach * static_cast<uint64_t>(GetParam()));
  EXPECT_EQ(Capabilities().dropped, 0u);
}

INSTANTIATE_TEST_SUITE_P(OneToFour, WritersTest, ::testing::Range(1, 5));

TEST_F(RingTest, AFullRingDropsAndOneRecordSaysHowManyAndWhen) {
  Collector collector(socket_, shelf_);
  Start(4096);
  ASSERT_EQ(reprise_flush(10000), REPRISE_OK);
  collector.SetDrain(false);
  // The reader may still be draining what was pushed before.
  const uint64_t before = Capabilities().pushed;

  for (uint64_t i = 1; i <= 5000; ++i)
    reprise_alloc(0, 1, 0, 0, REPRISE_ALLOC, /*ts=*/i);
  const reprise_caps full = Capabilities();
  collector.SetDrain(true);
  ASSERT_TRUE(collector.WaitForSession([&](const Session& session) {
    return session.records.size() >= full.pushed;
  }));
  reprise_alloc(0, 1, 0, 0, REPRISE_ALLOC, /*ts=*/9999);
  ASSERT_EQ(reprise_flush(10000), REPRISE_OK);

  EXPECT_EQ(full.pushed - before + full.dropped, 5000u);
  EXPECT_GT(full.dropped, 0u);
  const Session session = collector.OnlySession();
  ASSERT_EQ(session.Count(REPRISE_RECORD_LOSS), 1u);
  for (const reprise_slot& record : session.records) {
    if (record.kind != REPRISE_RECORD_LOSS) continue;
    EXPECT_EQ(record.body.loss.count, full.dropped);
    EXPECT_EQ(record.ts_ns, 5000 - full.dropped + 1);  // of the first lost
    EXPECT_EQ(record.body.loss.last_ts, 5000u);
    EXPECT_EQ(record.body.loss.why,
              static_cast<uint32_t>(REPRISE_LOSS_RING_FULL));
  }
}

TEST_F(RingTest, ACollectorThatScribblesOverTheRingCannotHangOrCrashAPush) {
  Collector collector(socket_, shelf_);
  collector.SetDrain(false);
  Start(4096);
  int ring_file = -1;
  for (int fd = 3; fd < 256 && ring_file < 0; ++fd) {
    char target[128] = {};
    const std::string link = "/proc/self/fd/" + std::to_string(fd);
    if (readlink(link.c_str(), target, sizeof target - 1) > 0 &&
        strstr(target, "memfd:reprise-ring") != nullptr)
      ring_file = fd;
  }
  ASSERT_GE(ring_file, 0);

  for (const char byte : {'\xff', '\x7f', '\x00', '\x55'}) {
    const std::string noise(REPRISE_RING_HEADER_BYTES + 4096 * 64, byte);
    ASSERT_GT(pwrite(ring_file, noise.data(), noise.size(), 0), 0);
    for (int i = 0; i < 10000; ++i) reprise_alloc(0, 1, 0, 0, REPRISE_ALLOC, 0);
    reprise_step(1);
  }
}

TEST_F(RingTest, AllNewNamesGoAheadOfTheRecordsThatUseThem) {
  Collector collector(socket_, shelf_);
  Start(1u << 16);

  for (int i = 0; i < 2000; ++i) {
    const uint32_t name = Intern("op " + std::to_string(i));
    reprise_op_begin(static_cast<uint64_t>(i), name, 0, 0, 0, 0);
    reprise_op_end(static_cast<uint64_t>(i));
    // Names that did not fit into the short queue follow with the next step.
    if (i % 100 == 0) reprise_step(static_cast<uint64_t>(i));
  }
  ASSERT_EQ(reprise_flush(20000), REPRISE_OK);
  ASSERT_TRUE(collector.WaitForSession(
      [](const Session& session) { return session.names.size() >= 2000; }));

  const Session session = collector.OnlySession();
  for (const reprise_slot& record : session.records) {
    if (record.kind != REPRISE_RECORD_OP_BEGIN) continue;
    EXPECT_EQ(session.names.at(record.body.op.name),
              "op " + std::to_string(record.body.op.op));
  }
}

TEST_F(RingTest, InterningGivesOneIdPerText) {
  EXPECT_EQ(Intern("a"), Intern("a"));
  EXPECT_NE(Intern("a"), Intern("b"));
  EXPECT_NE(Intern(""), 0u);
  EXPECT_EQ(reprise_intern(nullptr, 5), 0u);
  const std::string is_long(20000, 'x');
  EXPECT_EQ(Intern(is_long), Intern(is_long.substr(0, 4096)));

  std::vector<std::thread> threads;
  std::vector<std::vector<uint32_t>> ids(4);
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&ids, t] {
      for (int i = 0; i < 1000; ++i)
        ids[static_cast<size_t>(t)].push_back(
            Intern("shared " + std::to_string(i)));
    });
  for (std::thread& thread : threads) thread.join();
  for (const auto& mine : ids) EXPECT_EQ(mine, ids[0]);
  EXPECT_EQ(std::set<uint32_t>(ids[0].begin(), ids[0].end()).size(), 1000u);
}

}  // namespace
}  // namespace reprise::profiler::testing
