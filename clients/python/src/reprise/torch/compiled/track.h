// SPDX-License-Identifier: Apache-2.0
//
// The Python objects of a step: how far it has come, its records, and what
// autograd keeps of the tensors that it has saved.
#ifndef REPRISE_TORCH_COMPILED_TRACK_H_
#define REPRISE_TORCH_COMPILED_TRACK_H_

// clang-format off
#include <torch/csrc/python_headers.h>  // before all others
// clang-format on

#include <ATen/core/Tensor.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <optional>
#include <utility>
#include <vector>

#include "cells.h"
#include "digest.h"
#include "fault.h"
#include "records.h"
#include "sheet.h"

namespace reprise_fast {

struct SheetObject {
  PyObject_HEAD Sheet* sheet;
};

// The records of a step, and what autograd keeps of it.
struct Book {
  Records records;
  int64_t refs = 0;  // alive
  // Of values that are compared: how many were, and the slots of those that
  // differ.
  int64_t compared = 0;
  std::vector<int64_t> differing;
};

// How far a step has come; of tape/engine.py.
struct Track {
  PyObject_HEAD PyObject* sheet;
  PyObject* run;  // weak reference
  long long next;
  long long slot;
  long long cursor;
  long long task;
  unsigned long long here;  // reprise_at of the agent; 0: nobody is told
  long long device;  // a GPU, whose streams are looked at; -1: there are none
  long long home;    // the stream on which the step began
  char armed;        // everything has come as captured so far
  char safe;  // nothing is let go any more, what is missing is made on demand
  char audited;  // what is made again is compared with what was given up
  char keeps;    // the backward under way keeps its graph for another one
  Book* book;

  const Sheet& Page() const {
    return *reinterpret_cast<SheetObject*>(sheet)->sheet;
  }
  // Where the step is, for who asks after the job was killed.
  void Say(int64_t op) const {
    if (here != 0)
      reinterpret_cast<void (*)(uint64_t)>(here)(static_cast<uint64_t>(op) + 1);
  }
  // The stream that ops of this thread go to.
  long long Stream() const {
    const c10::impl::VirtualGuardImpl guard(c10::DeviceType::CUDA);
    const auto index = static_cast<c10::DeviceIndex>(device);
    return guard.getStream(c10::Device(c10::DeviceType::CUDA, index)).id();
  }
  bool Strays() const { return device >= 0 && Stream() != home; }
  // Borrowed; nullptr: the run is gone, and with it everything it replays.
  PyObject* Run() const {
    PyObject* const alive = PyWeakref_GetObject(run);
    return alive == Py_None ? nullptr : alive;
  }
};

// What autograd keeps of a tensor that stays.
struct Kept {
  PyObject_HEAD Track* track;
  long long slot;
  uint32_t version;
  at::Tensor tensor;
};

// What autograd keeps instead of a tensor that is given up.
struct Ref {
  PyObject_HEAD Track* track;
  PyObject* run;
  long long slot;
  int64_t version;
  CellPtr cell;
  Geometry geometry;
  at::Tensor made;
  std::optional<Digest> given;  // of what is given up, where it is compared
  // So many unpacks still find what was saved, which is `made` until then, at
  // this version.
  int64_t firsts;
  uint32_t stale;
};

// A call that was to be recorded has run. Where it is not recorded, the rest of
// the forward is kept.
inline void Settle(Track& track, const Outcome& outcome) {
  if (outcome.failure.empty()) return;
  track.armed = 0;
  if (!outcome.safe) track.safe = 1;
  Report(outcome.failure.c_str());
}

// Adds what has been counted here to the counts of the run.
inline bool CountUp(Track& track) {
  Records& records = track.book->records;
  PyObject* const run = track.Run();
  const auto dropped = std::exchange(records.dropped, 0);
  const auto replayed = std::exchange(records.replayed, 0);
  const auto on_demand = std::exchange(records.on_demand, 0);
  if (run == nullptr || (dropped == 0 && replayed == 0 && on_demand == 0))
    return true;
  PyObject* const done = PyObject_CallMethod(
      run, "count", "LLL", static_cast<long long>(dropped),
      static_cast<long long>(replayed), static_cast<long long>(on_demand));
  Py_XDECREF(done);
  return done != nullptr || Reported();
}

}  // namespace reprise_fast

#endif  // REPRISE_TORCH_COMPILED_TRACK_H_
