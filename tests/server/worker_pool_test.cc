// SPDX-License-Identifier: Apache-2.0
#include "server/service/calls/worker_pool.h"

#include <gtest/gtest.h>

#include <chrono>
#include <future>

namespace reprise::server {
namespace {

TEST(WorkerPool, WorkThatTakesSecondsLeavesAThreadForTheRest) {
  WorkerPool pool(/*threads=*/3, /*max_waiting=*/16, /*prompt_threads=*/1);
  std::promise<void> indexed;
  const std::shared_future<void> waits = indexed.get_future().share();
  // More than there are threads, as the panels of a page ask.
  for (int i = 0; i < 5; ++i) {
    ASSERT_TRUE(pool.Post([waits] { waits.wait(); }, Lane::kPatient));
  }
  std::promise<void> listed;

  ASSERT_TRUE(pool.Post([&] { listed.set_value(); }, Lane::kPrompt));

  // It ends while all of them still wait; the time only ends a failed test.
  EXPECT_EQ(listed.get_future().wait_for(std::chrono::minutes(1)),
            std::future_status::ready);
  EXPECT_GE(pool.waiting(), 2U);
  indexed.set_value();
}

}  // namespace
}  // namespace reprise::server
