// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "clients/cli/server/server_client.h"

namespace reprise::cli {
namespace {

using testing::HasSubstr;

TEST(Endpoint, IsWrittenWithOrWithoutItsScheme) {
  for (const char* text :
       {"127.0.0.1:7070", "http://127.0.0.1:7070", "http://127.0.0.1:7070/"}) {
    const auto endpoint = ParseEndpoint(text);
    ASSERT_TRUE(endpoint.ok()) << text;
    EXPECT_EQ(endpoint->target, "127.0.0.1:7070");
    EXPECT_EQ(endpoint->url, "http://127.0.0.1:7070");
  }
  EXPECT_TRUE(ParseEndpoint("localhost:1").ok());
  EXPECT_TRUE(ParseEndpoint("[::1]:7070").ok());
}

TEST(Endpoint, OtherMachinesAreReachedThroughATunnel) {
  EXPECT_THAT(ParseEndpoint("gpu7:7070").status().message(),
              HasSubstr("ssh -L 7070:localhost:7070"));
}

TEST(Endpoint, OtherMachinesAreReachedOverTls) {
  const auto endpoint = ParseEndpoint("https://gpu7:7443/");
  ASSERT_TRUE(endpoint.ok());
  EXPECT_EQ(endpoint->target, "gpu7:7443");
  EXPECT_EQ(endpoint->url, "https://gpu7:7443");
  EXPECT_TRUE(endpoint->tls);
}

TEST(Endpoint, WhatIsNoEndpointIsRefused) {
  for (const char* text :
       {"", "localhost", ":7070", "localhost:", "localhost:0",
        "localhost:70000", "localhost:7x", "a b"}) {
    EXPECT_EQ(ParseEndpoint(text).status().code(), Code::kInvalidArgument)
        << text;
  }
}

}  // namespace
}  // namespace reprise::cli
