// SPDX-License-Identifier: Apache-2.0
//
// Schedules that use the link to host memory: the evaluator's rules one by one,
// and the verifier's walk and brute force beside it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "planner/bounds/certify.h"
#include "planner/model/evaluate.h"
#include "planner/verify/walk.h"
#include "tests/planner/host_case.h"
#include "tests/planner/oracle.h"

namespace reprise::planner {
namespace {

using ::testing::HasSubstr;

using Kind = Entry::Kind;
Entry Send(StorageId s) { return {Kind::kSend, s}; }
Entry Sent(StorageId s) { return {Kind::kSent, s}; }
Entry Fetch(StorageId s) { return {Kind::kFetch, s}; }
Entry Fetched(StorageId s) { return {Kind::kFetched, s}; }

// a: writes x (4).  b: x -> y (8).  c: y -> z (6).  d: reads x, z.
// e: changes x in place.  f: reads x.
StepGraph Small() {
  StepGraph graph;
  graph.static_bytes = 100;
  graph.storages = {{.bytes = 4}, {.bytes = 8}, {.bytes = 6}};
  graph.ops = {{.time_ns = 1, .writes = {0}},
               {.time_ns = 2, .reads = {0}, .writes = {1}},
               {.time_ns = 4, .reads = {1}, .writes = {2}},
               {.time_ns = 8, .reads = {0, 2}},
               {.time_ns = 16, .reads = {0}, .mutates = {0}},
               {.time_ns = 32, .reads = {0}}};
  return graph;
}

// Out: 2 ns a byte; in: 1 ns a byte; 1 ns for every copy.
Capabilities Linked(int64_t host_bytes = 100) {
  return {.link = {.out_bytes_per_s = 500'000'000,
                   .in_bytes_per_s = 1'000'000'000,
                   .latency_ns = 1,
                   .host_bytes = host_bytes}};
}

TEST(HostWalkTest, ACopyFreesMemoryByOrderAndTakesTimeByTheClock) {
  const Schedule schedule = {Exec(0), Send(0), Exec(1),  Sent(0),
                             Exec(2), Free(1), Fetch(0), Fetched(0),
                             Exec(3), Exec(4), Exec(5)};
  std::vector<MemoryPoint> profile;

  const auto walked = Evaluate(Small(), schedule, Linked(), &profile);

  ASSERT_TRUE(walked.ok()) << walked.status().message();
  // While c runs, x is on the host: y 8 + z 6. While d runs: z 6 + x 4.
  EXPECT_EQ(profile[2].bytes, 114);
  EXPECT_EQ(profile[3].bytes, 110);
  EXPECT_EQ(walked->peak_bytes, 114);
  EXPECT_EQ(walked->host_peak_bytes, 4);
  // The copy out lasts from 1 to 10, b only until 3; c ends at 14, and the copy
  // back at 19: 63 ns of ops, 7 and 5 of waits.
  EXPECT_EQ(profile[2].start_ns, 10);
  EXPECT_EQ(profile[3].start_ns, 19);
  EXPECT_EQ(walked->time_ns, 63 + 7 + 5);
}

TEST(HostWalkTest, AnEngineCopiesOneStorageAfterTheOtherBesideTheOps) {
  const Schedule schedule = {
      Exec(0),  Exec(1),    Send(0),    Send(1), Sent(0), Fetch(0), Sent(1),
      Fetch(1), Fetched(0), Fetched(1), Exec(2), Exec(3), Exec(4),  Exec(5)};

  const auto walked = Evaluate(Small(), schedule, Linked());

  ASSERT_TRUE(walked.ok()) << walked.status().message();
  // Out: x 3..12, y 12..29. In: x 12..17, beside y on its way out, y 29..38.
  EXPECT_EQ(walked->time_ns, 38 + 4 + 8 + 16 + 32);
  EXPECT_EQ(walked->host_peak_bytes, 12);
}

TEST(HostWalkTest, AValueThatIsDroppedTwiceIsCopiedOutOnce) {
  const Schedule schedule = {Exec(0), Send(0), Sent(0), Fetch(0), Fetched(0),
                             Exec(1), Free(0), Exec(2), Fetch(0), Fetched(0),
                             Exec(3), Exec(4), Exec(5)};

  const auto walked = Evaluate(Small(), schedule, Linked());

  ASSERT_TRUE(walked.ok()) << walked.status().message();
  EXPECT_EQ(walked->time_ns, 63 + 9 + 5 + 5);
}

TEST(HostWalkTest, AFetchCountsFromTheFetchOnWhereverItIsWaitedFor) {
  const Schedule schedule = {Exec(0), Exec(1),    Send(0), Sent(0), Fetch(0),
                             Exec(2), Fetched(0), Exec(3), Exec(4), Exec(5)};

  const auto walked = Evaluate(Small(), schedule, Linked());

  ASSERT_TRUE(walked.ok()) << walked.status().message();
  EXPECT_EQ(walked->peak_bytes, 100 + 4 + 8 + 6);
  EXPECT_EQ(walked->peak_op, 2);
}

TEST(HostWalkTest, AHostCopyEndsAtTheLastFetchThatUsesIt) {
  // x and y are on the host one after the other: 8 bytes are enough.
  const Schedule schedule = {Exec(0),    Exec(1), Send(0), Sent(0),  Fetch(0),
                             Fetched(0), Send(1), Sent(1), Fetch(1), Fetched(1),
                             Exec(2),    Exec(3), Exec(4), Exec(5)};

  const auto walked = Evaluate(Small(), schedule, Linked(8));

  ASSERT_TRUE(walked.ok()) << walked.status().message();
  EXPECT_EQ(walked->host_peak_bytes, 8);
}

// Every rule: entries between b and c, and what the evaluator says.
TEST(HostWalkTest, EveryRuleHasItsSentence) {
  struct Wrong {
    Schedule entries;
    const char* says;
    int64_t host_bytes = 100;
  };
  const std::vector<Wrong> all = {
      {{Send(0)}, "no host memory", 0},
      {{Send(2)}, "sent but not present"},
      {{Free(0), Send(0)}, "sent but not present"},
      {{Send(0), Send(0)}, "sent while a copy of it is under way"},
      {{Send(1)}, "the host then holds 8 bytes, and may hold 7", 7},
      {{Sent(0)}, "taken as sent, but no send is under way"},
      {{Send(0), Sent(0), Fetch(0), Sent(0)}, "but no send is under way"},
      {{Fetch(0)}, "fetched, but the host has no copy of it"},
      {{Send(0), Fetch(0)}, "fetched but present"},
      {{Fetched(0)}, "taken as fetched, but no fetch is under way"},
      {{Send(0), Fetched(0)}, "but no fetch is under way"},
      {{Send(0), Free(0)}, "freed while a copy of it is under way"},
      {{Send(0), Sent(0), Free(0)}, "freed but not present"},
      {{Send(1), Sent(1)}, "op 2 needs storage 1 at version 1, but it is not"},
      {{Send(1), Sent(1), Fetch(1)},
       "op 2 reads storage 1 before it is fetched"},
      {{Send(1), Exec(1)}, "op 1 changes storage 1 while a copy"},
      {{Send(0), Exec(2), Exec(3), Exec(4)}, "op 4 changes storage 0 while a"},
      {{Send(0), Sent(0), Fetch(0), Fetched(0), Exec(2), Exec(3), Exec(4),
        Free(0), Fetch(0)},
       "the host has no copy of it"},
      {{Exec(2), Exec(3), Exec(4), Exec(5), Send(2)}, "under way at the end"},
  };
  for (const Wrong& wrong : all) {
    Schedule schedule = {Exec(0), Exec(1)};
    schedule.insert(schedule.end(), wrong.entries.begin(), wrong.entries.end());
    for (OpId o = 2; o < 6; ++o) {
      const bool has =
          std::count(wrong.entries.begin(), wrong.entries.end(), Exec(o)) != 0;
      if (!has) schedule.push_back(Exec(o));
    }

    const auto walked = Evaluate(Small(), schedule, Linked(wrong.host_bytes));

    EXPECT_THAT(walked.status().message(), HasSubstr(wrong.says));
  }
}

TEST(HostWalkTest, WhatStaysIsNotSent) {
  StepGraph graph = Small();
  graph.storages[0].stays = true;
  const Schedule schedule = {Exec(0),  Exec(1),    Send(0), Sent(0), Exec(2),
                             Fetch(0), Fetched(0), Exec(3), Exec(4), Exec(5)};

  const auto walked = Evaluate(graph, schedule, Linked());

  EXPECT_THAT(walked.status().message(), HasSubstr("the executor cannot copy"));
}

TEST(HostWalkTest, TheProgramsHoldOnAFirstLifeIsKeptBySentToo) {
  StepGraph graph = Small();
  graph.storages[0].release_op = 2;
  Capabilities program = Linked();
  program.free_policy = FreePolicy::kProgram;

  const auto walked =
      Evaluate(graph, std::vector{Exec(0), Exec(1), Send(0), Sent(0)}, program);

  EXPECT_THAT(walked.status().message(),
              HasSubstr("freed before op 2 has run"));
}

TEST(HostWalkTest, WhatComesBackFromTheHostIsTheFirstLifeOfAPinnedStorage) {
  StepGraph graph = Small();
  graph.storages[0].pinned = true;
  const Schedule schedule = {Exec(0),  Exec(1),    Send(0), Sent(0), Exec(2),
                             Fetch(0), Fetched(0), Exec(3), Exec(4), Exec(5)};

  EXPECT_TRUE(Evaluate(graph, schedule, Linked()).ok());
}

TEST(HostWalkTest, CodesOfEntriesAreReadBackAndUnknownOnesRefused) {
  for (const Kind kind : {Kind::kExec, Kind::kFree, Kind::kSend, Kind::kSent,
                          Kind::kFetch, Kind::kFetched}) {
    for (const int32_t id : {0, 1, (1 << 24) - 1}) {
      EXPECT_EQ(EntryOf(CodeOf({kind, id})), (Entry{kind, id}));
    }
  }
  EXPECT_EQ(CodeOf(Free(3)), -4);
  for (const int64_t code :
       {int64_t{1} << 24, -(int64_t{5} << 24) - 1, INT64_MIN, INT64_MAX}) {
    EXPECT_EQ(EntryOf(code), std::nullopt);
  }
}

// Puts copies of a storage around a place where nothing uses it.
void MoveToHost(Schedule& schedule, const StepGraph& graph, Random& random) {
  const StorageId s = random.Below(graph.storage_count());
  std::vector<size_t> uses;
  for (size_t i = 0; i < schedule.size(); ++i) {
    if (schedule[i].kind != Kind::kExec) continue;
    const Op& op = graph.ops[schedule[i].id];
    const bool reads = std::count(op.reads.begin(), op.reads.end(), s) != 0 ||
                       std::count(op.writes.begin(), op.writes.end(), s) != 0;
    if (reads) uses.push_back(i);
  }
  if (uses.size() < 2) return;
  const size_t use = 1 + random.Below(static_cast<int64_t>(uses.size()) - 1);
  std::vector<size_t> at;
  for (int i = 0; i < 4; ++i) {
    at.push_back(uses[use - 1] + 1 +
                 random.Below(static_cast<int64_t>(uses[use] - uses[use - 1])));
  }
  std::sort(at.begin(), at.end());
  const Entry entries[] = {Send(s), Sent(s), Fetch(s), Fetched(s)};
  for (int i = 4; i-- > 0;) {
    schedule.insert(schedule.begin() + static_cast<int64_t>(at[i]), entries[i]);
  }
}

TEST(HostWalkTest, TheVerifierWalksAsTheEvaluatorDoesWhateverTheSchedule) {
  int valid = 0, wrong = 0, copies = 0;
  for (int number = 0; number < 1500; ++number) {
    HostCase on(number);
    Random& random = on.random;
    const auto facts =
        verify::ReadFacts(on.graph, ExecutorOf(WithExecution(on.capabilities)));
    ASSERT_TRUE(facts.ok());
    if (on.graph.storage_count() == 0) continue;
    for (int mutant = 0; mutant < 12; ++mutant) {
      Schedule schedule = BaseSchedule(on.graph, on.capabilities.free_policy);
      for (int i = random.Below(4); i >= 0; --i) {
        MoveToHost(schedule, on.graph, random);
      }
      for (int change = random.Below(3); change > 0; --change) {
        const size_t at = random.Below(static_cast<int64_t>(schedule.size()));
        const auto kind = static_cast<Kind>(random.Below(6));
        const Entry other{kind, kind == Kind::kExec
                                    ? random.Below(on.graph.op_count())
                                    : random.Below(on.graph.storage_count())};
        if (random.Percent(40)) {
          schedule.insert(schedule.begin() + static_cast<int64_t>(at), other);
        } else if (random.Percent(50)) {
          schedule.erase(schedule.begin() + static_cast<int64_t>(at));
        } else {
          schedule[at] = other;
        }
        if (schedule.empty()) schedule.push_back(Exec(0));
      }

      const auto evaluated = Evaluate(on.graph, schedule, on.capabilities);
      const auto walked = verify::Walk(*facts, CodesOf(schedule));

      ASSERT_EQ(walked.ok(), evaluated.ok())
          << "graph " << number << ": "
          << (walked.ok() ? evaluated.status() : walked.status()).message();
      ++(walked.ok() ? valid : wrong);
      if (!walked.ok()) continue;
      copies += UsesHost(schedule);
      EXPECT_EQ(walked->peak_bytes, evaluated->peak_bytes);
      EXPECT_EQ(walked->time_ns, evaluated->time_ns);
      EXPECT_EQ(walked->host_peak_bytes, evaluated->host_peak_bytes);
    }
  }
  EXPECT_GT(copies, 1500);
  EXPECT_GT(valid, copies);
  EXPECT_GT(wrong, 3000);
}

TEST(HostWalkTest, WhatBruteForceFindsIsWhatTheEvaluatorSays) {
  int found = 0, better = 0, large = 0;
  for (int number = 0; number < 300; ++number) {
    HostCase on(number);
    if (on.graph.op_count() > 6 || on.graph.storage_count() > 6) continue;
    const auto base =
        Evaluate(on.graph, BaseSchedule(on.graph, on.capabilities.free_policy),
                 on.capabilities);
    ASSERT_TRUE(base.ok());
    const int64_t budget = base->peak_bytes - 1 - on.random.Below(4);
    int64_t states = 300'000;
    const auto best = BestSchedule(on.graph, on.capabilities, budget, &states);
    large += states < 0;
    if (!best.has_value()) continue;
    ++found;

    const auto walked = Evaluate(on.graph, best->schedule, on.capabilities);

    ASSERT_TRUE(walked.ok()) << number << ": " << walked.status().message();
    EXPECT_EQ(walked->time_ns, best->time_ns) << number;
    EXPECT_LE(walked->peak_bytes, budget) << number;
    Capabilities without = on.capabilities;
    without.link = {};
    const auto alone = BestSchedule(on.graph, without, budget);
    EXPECT_TRUE(!alone.has_value() || alone->time_ns >= best->time_ns);
    better += !alone.has_value() || alone->time_ns > best->time_ns;
  }
  EXPECT_GT(found, 20);
  EXPECT_GT(better, 10);
  EXPECT_LT(large, found);
}

}  // namespace
}  // namespace reprise::planner
