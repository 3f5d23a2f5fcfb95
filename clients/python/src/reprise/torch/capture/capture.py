# SPDX-License-Identifier: Apache-2.0
"""Records one training step: the ops in execution order and the storages they touch.

    capture = Capture(model, meter)
    capture.begin(prior, names)          # what is alive now and may die during the step
    with capture.region(): model(x)      # the root's forward; several per step with accumulation
    ...loss, backward...
    capture.enter_optimizer(); ...step...
    step = capture.finish()              # a CapturedStep

A dispatch mode sees every op below autograd and autocast, in forward, backward and optimizer.
Storages and tensor objects are followed by identity (identity.py). Saved-tensor hooks show
what autograd saves and at which backward op it is unpacked (packing.py, unpacked.py); the aliases
that they keep are the only tensors that do not count as the program's.

Ops on a side stream are never replayed, and what they touch is never discarded (not run on a GPU).

The capture holds no tensor from one op to the next, so that every storage lives as long as without
it, and it computes nothing, so that all numbers are the same.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from time import thread_time_ns
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor

from reprise.torch.capture.captured import (
    BACKWARD,
    FORWARD,
    CapturedOp,
    CapturedStep,
)
from reprise.torch.capture.fuse import without_idle
from reprise.torch.capture.identity import Storages
from reprise.torch.capture.kinds import (
    CAPTURED_TYPES,
    Exchange,
    chosen_by,
    kind_of,
    signature_of,
)
from reprise.torch.capture.lent import Resizes
from reprise.torch.capture.packing import Packing
from reprise.torch.capture.place import Place
from reprise.torch.capture.unpacked import Unpacked, reads
from reprise.torch.compiled.shortcut import has_shortcut, prepare, shortcut
from reprise.torch.internals.host import HostSaves
from reprise.torch.internals.modes import Mode, Op
from reprise.torch.internals.open_hooks import Hooks, close
from reprise.torch.internals.ops import (
    IGNORED,
    OpKind,
    collected_by,
    filled_by,
    hidden_writes,
    is_collective,
    tensors_in,
    written_by,
)
from reprise.torch.internals.subclass import parts_of
from reprise.torch.internals.traces import program_call, program_line
from reprise.torch.internals.watch import tell, waiting
from reprise.torch.meter.meter import Meter
from reprise.torch.meter.state import (
    known_names,
    missing_gradients,
    model_device,
    now_ns,
    stream_of,
    work_clock,
)
from reprise.torch.meter.windows import OpRecorder


class Capture(Mode):
    """Captures one step; use it once. `kernels`: the device runs kernels, which are traced, and ops
    are reported to the collector under the numbers of their records. `host`: saved tensors wait in
    host memory for the backward. A forward may run under a plan (`region`). In either case the
    captured step is the one in which saved tensors stay on the device."""

    def __init__(
        self,
        root: nn.Module,
        meter: Meter,
        recorder: OpRecorder | None = None,
        kernels: bool = False,
        host: HostSaves | None = None,
    ) -> None:
        super().__init__()
        self._host = host
        self._recorder = recorder
        self._kernels = kernels
        self._meter = meter
        self._root = root
        self._device = model_device(root)
        # The clock for op times. `finish` scales CPU times to wall time, all by the same factor.
        # The time of reading the clock is subtracted.
        self._clock = work_clock(self._device)
        self._stream = stream_of(self._device)
        self._home: Any = None  # the stream on which the step began
        self._look_ns = 0
        self._begin_clock = 0
        self._ops: list[CapturedOp] = []
        parameters = {
            part.untyped_storage()._cdata: name
            for name, parameter in root.named_parameters()
            for part in parts_of(parameter)
        }
        self._parameters = frozenset(parameters)
        self._missing = 0  # bytes of gradients that are not there yet
        self._unpacked = Unpacked(self._ops)
        self._place = Place(root, self._unpacked)
        self.storages = Storages(self._ops, parameters, meter, self._place)
        self._resizes = Resizes(self.storages.resized)
        self._packing = Packing(self.storages, self._unpacked, self._place, self._ops, host)
        self._regions: list[tuple[int, int]] = []
        self._begin_ns = 0
        self._peak = 0
        self._failed = False
        # Runs of earlier steps that may still be recomputed, and are told what this one writes.
        self._others: list[Any] = []
        # In a forward under a plan, whose tape lies between two modes of this capture: the op that
        # the upper one has passed on, and what the lower one measured of it.
        self._below = False
        self._expects: Any = None
        self._call = 0, 0  # of the program, in which the last op on fake tensors ran
        self._inside: tuple[int, int, int] | None = None

    tells_writes = True  # to runs of earlier steps (watch.py)

    # ---- The step -----------------------------------------------------------

    def begin(self, prior: Iterable[Tensor], names: dict[int, tuple[str, int]]) -> None:
        """Starts the step. `prior`: the tensors that are alive now and may die during it; `names`:
        name and category of some of them, by storage."""
        self._place.begin()
        self._ops.append(
            CapturedOp(None, "reprise.step_begin", FORWARD, OpKind.ONCE, in_region=False)
        )
        self.storages.before(prior, names)
        del prior
        self._others = waiting(self)
        prepare()
        self._missing = missing_gradients(self._root)
        self._meter.reset_peak()
        self.storages.live_begin = self._peak = self._meter.live()
        self._hooks = Hooks(self._packing.pack, self._packing.unpack)
        self._hooks.__enter__()
        self._resizes.__enter__()
        self.__enter__()
        self.thread = threading.get_ident()
        self._home = self._stream()
        self._look_ns = min(-self._clock() + self._clock() for _ in range(8))
        self._begin_clock = self._clock()
        self._begin_ns = now_ns(self._device)

    @contextmanager
    def region(self, tape: Any = None) -> Iterator[Callable[[Any], None]]:
        """Surrounds one forward of the root; yields a function that must be called with the
        outputs. With a tape (tape/tape.py): the forward runs under its plan."""
        first = len(self._ops)
        with self._place.region(), self._under(tape):
            yield self.storages.pin_outputs
        self._regions.append((first, len(self._ops)))

    @contextmanager
    def _under(self, tape: Any) -> Iterator[None]:
        """Runs a forward under a plan. The tape and its records would be ops of the step for a mode
        below, and for one above they would be a part of each op: so ops are seen from above, and
        measured below."""
        if tape is None:
            yield
            return
        self._packing.run = tape.run
        self.storages.held = True
        try:
            with tape.region(packs=False):
                self._packing.run = tape.run
                self._below = True
                try:
                    with _Above(self):
                        yield
                finally:
                    self._below = False
        finally:
            self._others = waiting(self)

    def enter_optimizer(self) -> None:
        """Assigns ops to the optimizer from now to the end of the step, and names the gradients
        that the backward has left."""
        self._place.in_optimizer = True
        self.storages.name(known_names(self._root, []))

    def leave(self) -> None:
        """Removes all hooks. May also be called to abandon the capture."""
        if self._place.running:
            self._place.end()
            close(self)

    def on_top(self) -> bool:
        """Returns whether no mode and no hooks of somebody else were set after ours."""
        return super().on_top() and self._hooks.on_top

    def take_off(self) -> None:
        super().take_off()
        self._resizes.__exit__()
        self._hooks.__exit__(None, None, None)

    def finish(self) -> CapturedStep:
        """Ends the captured step and returns it."""
        step_ns = now_ns(self._device) - self._begin_ns
        stretched = max(1.0, step_ns / max(1, self._clock() - self._begin_clock))
        self.leave()
        self._peak = max(self._peak, self._meter.peak())
        live_end = self._meter.live()
        self.storages.finish()
        self._unpacked.finish()
        step = CapturedStep(
            ops=self._ops,
            storages=self.storages.all,
            slots=[self._unpacked.whose(n, slot) for n, slot in enumerate(self._packing.slots)],
            unpacks=self._unpacked.unpacks,
            regions=self._regions,
            live_begin=self.storages.live_begin,
            live_end=live_end,
            peak_bytes=self._peak,
            step_ns=step_ns,
            worked=self._clock is thread_time_ns,
            apart=self._host is not None or self.storages.held,
            parameters=self._parameters,
            missing_bytes=self._missing,
        )
        step.stretch(stretched)
        return without_idle(step)

    # ---- Ops ----------------------------------------------------------------

    def failed(self) -> None:
        self._failed = True

    def op(self, op_: Op, types: Any) -> Any:
        """Records an op; below a tape, only measures it."""
        if not self._below:
            return self.record(op_, types)
        if self._expects is not op_.func:
            return op_.run()
        self._expects = None
        meter = self._meter
        live = meter.live()
        meter.reset_peak()
        begin = self._clock()
        out = op_.run()
        took = max(0, self._clock() - begin - self._look_ns)
        self._inside = took, live, meter.peak()
        return out

    def record(self, op_: Op, types: Any) -> Any:
        """Runs an op, and records what it reads, writes and makes, its time and its memory."""
        if not CAPTURED_TYPES.issuperset(types):
            return NotImplemented  # a subclass makes inner calls, which come here
        func, args, kwargs = op_.func, op_.args, op_.kwargs
        if not self._place.running or self._failed:
            return op_.run()
        if self._others:
            tell(self._others, func, args, kwargs)
        if func in IGNORED:
            out = op_.run()
            if not self._packing.aliasing:
                self.storages.ignored(args, kwargs, out)
            return out
        phase = self._place.phase()
        arguments = tuple(tensors_in(*args, kwargs))
        read = [self.storages.argument(tensor) for tensor in arguments]
        meter = self._meter
        live = meter.live()
        self._peak = max(self._peak, meter.peak())
        meter.reset_peak()
        record = self._recorder.begin(str(func)) if self._recorder is not None else 0
        shortens = phase == FORWARD and self._place.in_region and has_shortcut(func, args)
        self._expects, self._inside = func, None
        begin = self._clock()
        out = op_.run()
        took = max(0, self._clock() - begin - self._look_ns)
        if self._recorder is not None:
            self._recorder.end(record)
        peak = meter.peak()
        self._peak = max(self._peak, peak)
        if self._inside is not None:
            took, live, peak = self._inside

        number = len(self._ops)
        module, call, source = self._place.module, self._place.call, ""
        if phase == BACKWARD:
            module, call, source = self._unpacked.module, 0, self._unpacked.source
        name = str(func)
        op = CapturedOp(func, name, phase, OpKind.PURE, self._place.in_region and phase == FORWARD)
        op.module, op.call, op.time_ns = module, call, took
        op.source = source or program_line()
        op.covered = op.in_region and not self._hooks.on_top
        op.ordinal = self._place.ordinal(module, call, name)
        op.signature = signature_of(args, kwargs)
        if self._kernels:
            op.agent_ops.append(record)
        op.arguments = tuple(s for s in read if s is not None)
        self._ops.append(op)
        new_bytes = self.storages.outputs(op, number, arguments, chosen_by(func, args, out), out)
        op.workspace_bytes = max(0, peak - live - new_bytes)
        op.live_before, op.peak_bytes, op.live_bytes = live, peak, meter.live()
        reads(op, op.arguments)
        self._unpacked.read_by(op)
        self._note_writes(op, number, args, kwargs)
        if exchange := Exchange.of(name, args, out):
            self.storages.exchanged(exchange)
        op.kind = kind_of(op, args, kwargs, out, arguments)
        if FakeTensor in types:
            self._mark_echo(op)
        if self._stream() != self._home:
            self._mark_side_stream(op)
        if shortens and op.kind in (OpKind.PURE, OpKind.SEEDED):
            self._try_shortcut(op, args, out)
        return out

    def _note_writes(
        self, op: CapturedOp, number: int, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        """Records which storages, of those that existed before the op, it has written."""
        for tensor in (*filled_by(op.func, kwargs), *collected_by(op.func, args)):
            storage = self.storages.argument(tensor)
            if storage is not None:
                into = storage.collected if is_collective(op.func) else storage.filled
                into.append((number, tensor.untyped_storage().nbytes()))
        hidden = hidden_writes(op.func, args)
        skip = {t.untyped_storage()._cdata for t in hidden}
        for tensor in written_by(op.func, args, kwargs):
            if self._host is not None:
                self._host.written(tensor)
            storage = self.storages.argument(tensor)
            if storage is not None and tensor.untyped_storage()._cdata not in skip:
                storage.mutated_by.append(number)
                if storage not in op.mutates and storage not in op.writes:
                    op.mutates.append(storage)
                    reads(op, (storage,))
        for tensor in hidden:
            storage = self.storages.argument(tensor)
            if storage is not None:
                storage.mutated_by.append(number)
                op.reads.remove(storage)  # a replay neither reads nor writes them

    def _mark_echo(self, op: CapturedOp) -> None:
        """Marks a view that autograd makes again of a fake tensor, in the call that has written
        another view of it."""
        before, (self._call, call) = self._ops[-2], (program_call(), self._call)
        if op.kind != OpKind.VIEW or not op.in_region or self._call != call:
            return
        wrote = before.echo or any(storage in before.mutates for storage in op.arguments)
        known = (op.func, op.signature, op.arguments)
        op.echo = wrote and any(
            (seen.func, seen.signature, seen.arguments) == known for seen in self._ops[-2:0:-1]
        )

    @staticmethod
    def _mark_side_stream(op: CapturedOp) -> None:
        """Marks an op on a side stream. A replay runs where autograd needs it and waits for no
        stream, so nothing that such an op makes or reads may be discarded."""
        op.side = True
        if op.kind in (OpKind.PURE, OpKind.SEEDED):
            op.kind = OpKind.ONCE
        for storage in (*op.reads, *op.writes, *op.mutates):
            storage.pinned = True

    def _try_shortcut(self, op: CapturedOp, args: tuple[Any, ...], out: Any) -> None:
        """Measures what a replay of the op costs with its shortcut. Neither its time nor its memory
        counts for the step."""
        began, clock = now_ns(self._device), self._clock()
        guard = torch._C._DisableTorchDispatch() if self._below else None
        made = shortcut(op.func, args, out)
        self._meter.reset_peak()
        live = self._meter.live()
        begin = self._clock()
        again = made(args)
        op.again_ns = max(1, self._clock() - begin - self._look_ns)
        op.kept_bytes = made.bytes
        results = {t.untyped_storage()._cdata: t for t in tensors_in(again)}
        kept = {t.untyped_storage()._cdata for t in (*tensors_in(out), *tensors_in(args))}
        new = sum(t.untyped_storage().nbytes() for c, t in results.items() if c not in kept)
        op.workspace_bytes = max(op.workspace_bytes, self._meter.peak() - live - new)
        for storage in op.writes:
            # The replay makes the first output from the others, which autograd saves anyway.
            storage.pinned |= storage is not op.outputs[0]
        del made, again, results, guard
        self._meter.reset_peak()
        self._begin_ns += now_ns(self._device) - began
        self._begin_clock += self._clock() - clock


class _Above(Mode):
    """Shows a capture the ops of a forward before a tape sees them."""

    def __init__(self, capture: Capture) -> None:
        super().__init__()
        self._capture = capture

    def op(self, op: Op, types: Any) -> Any:
        return self._capture.record(op, types)

    def failed(self) -> None:
        self._capture.failed()
