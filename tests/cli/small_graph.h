// SPDX-License-Identifier: Apache-2.0
//
// The graph that the command's tests plan: two layers forward, a loss, two
// layers back.
//
//   op 0 f1   forward             makes 0 (100 bytes)   10 ns
//   op 1 f2   forward   reads 0   makes 1 (100)         20 ns
//   op 2 loss forward   reads 1   makes 2 (8)            1 ns   once
//   op 3 b2   backward  reads 0 1 2  makes 3 (100)      40 ns   workspace 16
//   op 4 b1   backward  reads 0 3    makes 4 (100)      20 ns
//
// Static memory 1000; storage 4 is required. Without a plan the peak is at
// b2: 1000 + 100 + 100 + 8 + 100 + 16 = 1324, and the step takes 91 ns.
#pragma once

#include "reprise/v1/graph.pb.h"

namespace reprise {

inline v1::StepGraph SmallGraph() {
  v1::StepGraph graph;
  graph.set_name("small");
  graph.set_static_bytes(1000);
  for (const int64_t bytes : {100, 100, 8, 100, 100}) {
    v1::Storage& storage = *graph.add_storages();
    storage.set_id(static_cast<uint32_t>(graph.storages_size() - 1));
    storage.set_bytes(bytes);
    storage.set_category(v1::CATEGORY_ACTIVATION);
  }
  const auto add = [&graph](const char* name, v1::Phase phase, int64_t time_ns,
                            std::initializer_list<uint32_t> reads) {
    v1::Op& op = *graph.add_ops();
    const auto id = static_cast<uint32_t>(graph.ops_size() - 1);
    op.set_id(id);
    op.set_name(name);
    op.set_phase(phase);
    op.set_kind(v1::OP_KIND_PURE);
    op.set_time_ns(time_ns);
    for (const uint32_t storage : reads) op.add_reads(storage);
    op.add_writes(id);
  };
  add("f1", v1::PHASE_FORWARD, 10, {});
  add("f2", v1::PHASE_FORWARD, 20, {0});
  add("loss", v1::PHASE_FORWARD, 1, {1});
  add("b2", v1::PHASE_BACKWARD, 40, {0, 1, 2});
  add("b1", v1::PHASE_BACKWARD, 20, {0, 3});
  graph.mutable_ops(2)->set_kind(v1::OP_KIND_ONCE);
  graph.mutable_ops(3)->set_workspace_bytes(16);
  graph.mutable_ops(3)->set_module("layers.2");
  graph.add_required(4);
  return graph;
}

}  // namespace reprise
