# SPDX-License-Identifier: Apache-2.0
"""What the ops of a forward take in steps that nobody looks at: timed in C++, before one is
captured.

    times = OpTimes(job)
    with times.around(): ...            # a plain forward; timed where it tells something
    with times.around(rung): ...        # one under a plan
    times.spent_ns()                    # the step has ended: what looking at clocks took of it
    times.apply(step, key)              # the ops of a captured step take what they took then

A capture looks at every op from Python, which evicts from the caches what the next op reads: it
finds convolutions a third slower than they are in a step, and small ops several times slower. A
replay takes as long as the op takes in a plain step, so ops are timed there (op_clock.h), or under
the plan of the first steps: in all steps of the warm-up but the first, which pays for what is set
up once. The least of several times counts: nothing makes an op quicker than it is.

Ops are told apart by name and order: the third convolution is the third convolution. Where the two
forwards differ in how often they call an op, and for shapes that were not timed, all ops of one
name are scaled as those of that name were on the whole.

Some forwards under the plan of a captured step are timed, too: where the same ops take another time
than they did before, the machine has become quicker or slower, and the times of steps say nothing
about the plan (load.py).

Where the native engine of the tape is missing, replays are called from Python, as the captured ops
were, and their times are right. On a GPU they are those of the kernels.
"""

from __future__ import annotations

import time
from collections import defaultdict, deque
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache
from typing import Any

import torch

from reprise.torch.capture.captured import CapturedOp, CapturedStep
from reprise.torch.job.job import EagerJob
from reprise.torch.ladder.rung import Key, Rung
from reprise.torch.meter.state import blocked
from reprise.torch.policy.state import Stage
from reprise.torch.tape.tape import native_engine

_UNTIMED = nullcontext()

Times = dict[str, list[int]]  # by name, in the order of the calls

# A plan is compared with the steps before it by the least times of so many of its newest steps.
COMPARED = 3


class OpTimes:
    """The op times of one session's steps."""

    def __init__(self, job: EagerJob) -> None:
        self._job = job
        self._now: Times = defaultdict(list)  # of the step under way
        self._known: dict[Key, Times] = {}
        self._scales: dict[str, float] = {}  # by name: in a step, by in a capture
        self._plan: Rung | None = None  # of the step under way, if its base is known
        self._under: dict[int, deque[Times]] = {}  # of steps under the plan of a captured step

    def around(self, rung: Rung | None = None) -> AbstractContextManager[None]:
        """Times the ops of a forward inside the context: of one under the plan of `rung`, or else
        of a plain one."""
        return self._timed(rung) if self._wanted(rung) else _UNTIMED

    @contextmanager
    def _timed(self, rung: Rung | None) -> Iterator[None]:
        library = native_engine()
        if library is None or not library.clock(_by_cpu()):
            yield
            return
        self._plan = None if rung is None or rung.sketch else rung
        try:
            yield
        finally:
            for name, overload, took in library.clocked():
                space, _, short = name.partition("::")
                self._now[f"{space}.{short}.{overload or 'default'}"].append(took)

    def _wanted(self, rung: Rung | None) -> bool:
        job = self._job
        if rung is None:
            is_time = job.stage is Stage.WARMUP and job.measured.plain_steps > 0
        else:
            count = job.measured.under(rung.number).count
            few = count <= COMPARED or count & (count - 1) == 0
            is_time = count > 0 and (rung.sketch or (few and job.step.key in self._known))
        return (
            is_time
            and job.budget is not None
            and job.agent.status != "inert"
            and job.device.type == "cpu"
            and not blocked()
        )

    def spent_ns(self) -> int:
        """Takes over the times of a step; returns what reading the clock cost (ns)."""
        now, self._now = self._now, defaultdict(list)
        if not now:
            return 0
        known = self._known.setdefault(self._job.step.key, {})
        if self._plan is None:
            for name, times in now.items():
                before = known.get(name, times)
                same = len(before) == len(times)
                known[name] = list(map(min, before, times)) if same else times
        else:
            self._compare(known, now, self._plan.number)
        return sum(map(len, now.values())) * _look_ns(_by_cpu())

    def _compare(self, known: Times, now: Times, rung: int) -> None:
        """Reports what the same ops took before and take under a plan."""
        steps = self._under.setdefault(rung, deque(maxlen=COMPARED))
        steps.append(now)
        then_ns = now_ns = 0
        for name, before in known.items():
            times = [step[name] for step in steps if len(step.get(name, ())) == len(before)]
            if len(times) == COMPARED:
                then_ns += sum(before)
                now_ns += sum(map(min, *times))
        self._job.record.same_ops(then_ns, now_ns)

    def forget(self) -> None:
        """Forgets the step under way, which came to nothing."""
        self._now = defaultdict(list)

    def apply(self, step: CapturedStep, key: Key) -> None:
        """Puts the op times of plain steps into a captured step."""
        ops: dict[str, list[CapturedOp]] = defaultdict(list)
        for op in step.ops:
            if op.in_region:
                ops[op.name].append(op)
        known = self._known.get(key, {})
        for name, calls in ops.items():
            times = known.get(name, [])
            before = sum(op.time_ns for op in calls)
            for number, op in enumerate(calls):
                if len(times) == len(calls):
                    in_step = int(times[number] * step.stretched)
                else:
                    in_step = int(op.time_ns * self._scales.get(name, 1.0))
                _shorten(op, in_step)
            if len(times) == len(calls) and before:
                self._scales[name] = sum(op.time_ns for op in calls) / before


def _shorten(op: CapturedOp, in_step_ns: int) -> None:
    """Shortens the time of what stands in for an op when it is recomputed, too."""
    before = op.time_ns
    op.time_ns = min(before, in_step_ns)
    if op.again_ns and before:
        op.again_ns = max(1, op.again_ns * op.time_ns // before)


def _by_cpu() -> bool:
    """Returns whether ops are timed by CPU time, as `work_clock` decides."""
    return torch.get_num_threads() == 1


@cache
def _look_ns(by_cpu: bool) -> int:
    """Returns how much longer an op takes when it is timed: the quickest of several timed rounds
    of the smallest op there is, minus the quickest of those that are not timed."""
    library: Any = native_engine()
    tiny = torch.ones(1)
    clock = time.thread_time_ns if by_cpu else time.perf_counter_ns
    least = [1 << 62, 1 << 62]
    for number in range(20):
        timed = bool(number % 2) and library.clock(by_cpu)
        begin = clock()
        for _ in range(50):
            tiny.neg()
        took = clock() - begin
        library.clocked()
        least[timed] = min(least[timed], took)
    return int(max(0, least[1] - least[0]) // 50) if least[1] < 1 << 62 else 0
