// SPDX-License-Identifier: Apache-2.0
#include "base/tcp_sockets.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>

#include "base/str_cat.h"

namespace reprise {
namespace {

// A socket that listens on a free port, of one family, at loopback or at any
// address.
class Listening {
 public:
  Listening(bool v6, bool any) {
    fd_ = ::socket(v6 ? AF_INET6 : AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in6 six{};
    six.sin6_family = AF_INET6;
    six.sin6_addr = any ? in6addr_any : in6addr_loopback;
    sockaddr_in four{};
    four.sin_family = AF_INET;
    four.sin_addr.s_addr = htonl(any ? INADDR_ANY : INADDR_LOOPBACK);
    auto* address = v6 ? reinterpret_cast<sockaddr*>(&six)
                       : reinterpret_cast<sockaddr*>(&four);
    socklen_t size = v6 ? sizeof(six) : sizeof(four);
    ok_ = fd_ >= 0 && ::bind(fd_, address, size) == 0 &&
          ::listen(fd_, 1) == 0 && ::getsockname(fd_, address, &size) == 0;
    port_ = ntohs(v6 ? six.sin6_port : four.sin_port);
  }
  ~Listening() { Close(); }
  void Close() {
    if (fd_ >= 0) ::close(fd_);
    fd_ = -1;
  }
  bool ok() const { return ok_; }
  int port() const { return port_; }

 private:
  int fd_ = -1;
  int port_ = 0;
  bool ok_ = false;
};

struct Case {
  bool v6, any;
  const char* reached_at;
};

class CheckListenerTest : public testing::TestWithParam<Case> {};

TEST_P(CheckListenerTest, KnowsWhoseSocketListens) {
  const Case& one = GetParam();
  Listening listening(one.v6, one.any);
  if (!listening.ok()) GTEST_SKIP() << "this machine has no such address";
  const std::string target = StrCat(one.reached_at, ":", listening.port());
  const std::array<uint32_t, 1> me = {::geteuid()};
  const std::array<uint32_t, 1> stranger = {::geteuid() + 1};

  EXPECT_TRUE(CheckListener(target, me).ok())
      << CheckListener(target, me).message();
  EXPECT_EQ(CheckListener(target, stranger).code(), Code::kPermissionDenied);
  EXPECT_NE(CheckListener(target, stranger).message().find("not sent"),
            std::string::npos);

  listening.Close();
  EXPECT_EQ(CheckListener(target, me).code(), Code::kUnavailable);
}

INSTANTIATE_TEST_SUITE_P(Addresses, CheckListenerTest,
                         testing::Values(Case{false, false, "127.0.0.1"},
                                         Case{false, true, "127.0.0.1"},
                                         Case{false, false, "localhost"},
                                         Case{true, false, "[::1]"},
                                         Case{true, true, "[::1]"},
                                         Case{true, true, "127.0.0.1"}));

TEST(CheckListenerTest, TrustsNobodyAtWhatIsNoAddress) {
  const std::array<uint32_t, 1> me = {::geteuid()};
  for (const char* text : {"", ":", "host:80", "127.0.0.1", "127.0.0.1:x"}) {
    EXPECT_FALSE(CheckListener(text, me).ok()) << text;
  }
}

}  // namespace
}  // namespace reprise
