// SPDX-License-Identifier: Apache-2.0
//
// The Python objects of a step: its progress, its records, and what autograd
// keeps in place of the tensors it saves.
#ifndef REPRISE_TORCH_COMPILED_TRACK_H_
#define REPRISE_TORCH_COMPILED_TRACK_H_

#include <ATen/core/Tensor.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/csrc/python_headers.h>

#include <utility>
#include <vector>

#include "cells.h"
#include "fault.h"
#include "records.h"
#include "sheet.h"

namespace reprise_fast {

// The records of a step.
struct Book {
  Records records;
  int64_t refs = 0;  // Ref objects alive
};

// The progress of a step under a program; counterpart of PythonEngine in
// tape/python_engine.py. `next` is the next row, `slot` the next saved tensor,
// `cursor` the next event and `task` autograd's graph task.
struct Track {
  PyObject_HEAD PyObject* sheet;
  const Sheet* page;
  PyObject* run;  // weak reference
  long long next;
  long long slot;
  long long cursor;
  long long task;
  unsigned long long here;  // reprise_at of the agent; 0: not reported
  long long device;         // GPU whose streams are checked; -1: none
  long long home;           // the stream on which the step began
  long long host;           // key of what it has in host memory (parked.py)
  char armed;               // the step has matched the captured one so far
  char safe;                // nothing is released; recompute on demand
  char audited;             // recomputed values are compared
  char keeps;               // this backward keeps its graph for another
  PyObject* life;           // of the forward that runs (tape_run.py)
  Book* book;

  const Sheet& Page() const { return *page; }
  // Reports the current op to the agent, so that it is known if the job is
  // killed.
  void Say(int64_t op) const {
    if (here != 0)
      reinterpret_cast<void (*)(uint64_t)>(here)(static_cast<uint64_t>(op) + 1);
  }
  // Returns the stream to which this thread submits ops.
  long long Stream() const {
    const c10::impl::VirtualGuardImpl guard(c10::DeviceType::CUDA);
    const auto index = static_cast<c10::DeviceIndex>(device);
    return guard.getStream(c10::Device(c10::DeviceType::CUDA, index)).id();
  }
  bool Strays() const { return device >= 0 && Stream() != home; }
  // Returns a borrowed reference; null once the run, and everything it replays,
  // is gone.
  PyObject* Run() const {
    PyObject* const alive = PyWeakref_GetObject(run);
    return alive == Py_None ? nullptr : alive;
  }
};

// What autograd keeps for a tensor that the plan saves.
struct Kept {
  PyObject_HEAD Track* track;
  PyObject* life;
  long long slot;
  uint32_t version;
  at::Tensor tensor;
};

// What autograd keeps instead of a tensor that the plan discards.
struct Ref {
  PyObject_HEAD Track* track;
  PyObject* life;
  PyObject* run;
  long long slot;
  int64_t version;
  CellPtr cell;
  Geometry geometry;
  at::Tensor made;
  PyObject* given;  // what the run needs to compare; null: nothing is compared
  // The number of unpacks that still find the tensor as it was saved. Until
  // then `made` holds it, with the version counter `stale`.
  int64_t firsts;
  uint32_t stale;
};

// Handles the outcome of a call that was to be recorded. If it was not
// recorded, the rest of the forward is saved.
inline void Settle(Track& track, const Outcome& outcome) {
  if (outcome.failure.empty()) return;
  track.armed = 0;
  if (!outcome.safe) track.safe = 1;
  Report(outcome.failure.c_str());
}

// Adds the counts of the records to those of the run, and resets them. Throws
// what the run raises.
inline void CountUp(Track& track) {
  Records& records = track.book->records;
  PyObject* const run = track.Run();
  const auto dropped = std::exchange(records.dropped, 0);
  const auto replayed = std::exchange(records.replayed, 0);
  const auto on_demand = std::exchange(records.on_demand, 0);
  if (run == nullptr || (dropped == 0 && replayed == 0 && on_demand == 0))
    return;
  PyObject* const done = PyObject_CallMethod(
      run, "count", "LLL", static_cast<long long>(dropped),
      static_cast<long long>(replayed), static_cast<long long>(on_demand));
  Py_XDECREF(done);
  if (done == nullptr && !Reported()) throw python_error();
}

}  // namespace reprise_fast

#endif  // REPRISE_TORCH_COMPILED_TRACK_H_
