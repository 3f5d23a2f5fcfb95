// SPDX-License-Identifier: Apache-2.0
//
// Messages that an agent may send: a HELLO, then others, each {u16 type, u16
// size, bytes}. Whatever arrives, the session must stay within its bounds and
// keep answering.
#include <chrono>
#include <cstring>

#include "profiler/include/reprise_wire.h"
#include "server/collect/agent_session.h"
#include "tests/fuzz/harness.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace reprise::server;
  Message hello;
  hello.type = REPRISE_MSG_HELLO;
  hello.body.assign(reinterpret_cast<const char*>(data), size);
  const auto parsed = ParseHello(hello, Peer{.uid = 1, .pid = 2});
  if (parsed.ok()) {
    REPRISE_FUZZ_CHECK(!parsed->session_id.empty());
    REPRISE_FUZZ_CHECK(parsed->slots <= REPRISE_RING_MAX_SLOTS);
  } else {
    REPRISE_FUZZ_CHECK(!parsed.status().message().empty());
  }

  SpooledSession row;
  row.key = 1;
  row.session_id = "fuzz";
  AgentSession session(std::move(row), {});
  size_t at = 0;
  while (at + 4 <= size) {
    uint16_t type = 0, length = 0;
    std::memcpy(&type, data + at, sizeof(type));
    std::memcpy(&length, data + at + 2, sizeof(length));
    at += 4;
    const size_t n =
        std::min<size_t>({length, size - at, size_t{REPRISE_MAX_BODY_BYTES}});
    Message message;
    message.type = type % 32;
    message.body.assign(reinterpret_cast<const char*>(data) + at, n);
    at += n;
    if (!session.Handle(std::move(message), std::chrono::steady_clock::now())
             .ok()) {
      break;
    }
  }
  REPRISE_FUZZ_CHECK(session.Snapshot().capabilities.size() <= 65);
  return 0;
}
