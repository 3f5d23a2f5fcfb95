// SPDX-License-Identifier: Apache-2.0
//
// Built instead of postgres_store_test.cc with -DREPRISE_POSTGRES=OFF.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "server/store/postgres_store.h"
#include "server/store/store.h"

namespace reprise::server {
namespace {

using ::testing::HasSubstr;

TEST(PostgresNoneTest, ADatabaseIsRefusedWithWhatThisBuildLacks) {
  const Status url = CheckPostgresUrl("postgresql:///runs");
  const auto store = Store::Open({.url = "postgresql:///runs"});

  EXPECT_EQ(url.code(), Code::kFailedPrecondition);
  EXPECT_THAT(url.message(), HasSubstr("built without PostgreSQL"));
  EXPECT_EQ(store.status().message(), url.message());
}

}  // namespace
}  // namespace reprise::server
