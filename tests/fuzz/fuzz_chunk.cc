// SPDX-License-Identifier: Apache-2.0
//
// Messages that a collector may send to a server: a Hello, Defs, a Lost, a
// Chunk. In half of the inputs the body's checksum is corrected, so that the
// code that reads the columns is reached.
#include <string_view>

#include "base/crc32c.h"
#include "server/ingest/chunk_check.h"
#include "tests/fuzz/harness.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace reprise;
  using namespace reprise::server;
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  v1::Hello hello;
  if (hello.ParseFromArray(data, static_cast<int>(size)))
    (void)CheckHello(hello).ok();
  v1::Defs defs;
  if (defs.ParseFromArray(data, static_cast<int>(size)))
    (void)CheckDefs(defs).ok();
  v1::Lost lost;
  if (lost.ParseFromArray(data, static_cast<int>(size)))
    (void)CheckLost(lost).ok();

  v1::Columns columns;
  v1::Chunk chunk;
  if (!chunk.ParseFromArray(data, static_cast<int>(size)) ||
      chunk.body().empty()) {
    chunk.Clear();
    chunk.set_seq(1);
    chunk.set_body(std::string(bytes));
    chunk.set_count(columns.ParseFromString(chunk.body())
                        ? static_cast<uint32_t>(columns.kind_size())
                        : 1);
  }
  if (size % 2 == 0) chunk.set_crc32c(Crc32c(chunk.body()));
  const auto checked = CheckChunk(chunk);
  if (!checked.ok()) {
    REPRISE_FUZZ_CHECK(!checked.status().message().empty());
    return 0;
  }
  const auto count = static_cast<int>(chunk.count());
  REPRISE_FUZZ_CHECK(chunk.count() <= kMaxChunkRecords);
  for (const int n :
       {checked->kind_size(), checked->start_ns_size(), checked->op_size(),
        checked->graph_size(), checked->bytes_size(), checked->extra_size()}) {
    REPRISE_FUZZ_CHECK(n == 0 || n == count);
  }
  return 0;
}
