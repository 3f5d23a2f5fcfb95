# SPDX-License-Identifier: Apache-2.0
"""Watches one training step: the ops in execution order and the storages they touch.

    capture = Capture(model, meter)
    capture.begin(prior)                 # what is alive now and may die during the step
    with capture.region(): model(x)      # the root's forward; several per step with accumulation
    ...loss, backward...
    capture.enter_optimizer(); ...step...
    step = capture.finish()              # a CapturedStep

A dispatch mode sees every op below autograd and autocast, in forward, backward and optimizer.
Storages and tensor objects are followed by identity (identity.py). Saved-tensor hooks tell what
autograd saves and at which backward op it is unpacked (unpacked.py): their packed aliases are the
one thing that is not counted as the program's.

Ops on a side stream are never run again, and what they touch is never given up (not run on a GPU).

No tensor is held across ops, so that every life is as long as without the capture, and nothing is
computed, so that every number is the same.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from time import thread_time_ns
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode_stack

from reprise.torch.capture.captured import (
    BACKWARD,
    FORWARD,
    OPTIMIZER,
    CapturedOp,
    CapturedStep,
    CapturedStorage,
    SavedTensor,
    Unpack,
)
from reprise.torch.capture.identity import Storages
from reprise.torch.capture.kinds import CAPTURED_TYPES, is_plain, kind_of, signature_of, written_by
from reprise.torch.capture.sizes import Chosen, chosen_by, follow
from reprise.torch.capture.unpacked import Unpacked, reads
from reprise.torch.compiled.shortcut import has_shortcut, prepare, shortcut
from reprise.torch.ground.host import HostSaved, HostSaves
from reprise.torch.ground.open_hooks import Hooks, close
from reprise.torch.ground.ops import IGNORED, OpKind, hidden_writes, tensors_in
from reprise.torch.ground.stale import stale_message
from reprise.torch.meter.meter import Meter
from reprise.torch.meter.state import model_device, now_ns, stream_of, work_clock
from reprise.torch.meter.windows import OpRecorder

__all__ = [
    "BACKWARD",
    "FORWARD",
    "OPTIMIZER",
    "Capture",
    "CapturedOp",
    "CapturedStep",
    "CapturedStorage",
    "SavedTensor",
    "Unpack",
]


class _Packed:
    """What autograd keeps instead of the tensor: an alias the program does not own, or its copy on
    the host."""

    __slots__ = ("kept", "module", "slot", "storage", "version")

    def __init__(
        self, kept: Tensor | HostSaved, slot: int, storage: CapturedStorage, module: str
    ) -> None:
        self.kept = kept
        self.slot = slot
        self.storage = storage
        self.version = kept._version if isinstance(kept, Tensor) else kept.version
        self.module = module


class Capture(TorchDispatchMode):
    """One captured step. Use once. `kernels`: a device runs kernels meanwhile, and they are traced;
    ops are then told to the collector by the numbers of their records. `host`: saved tensors wait
    there for the backward; what is captured is the step as it would be if they stayed."""

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
        self._root = root
        self._meter = meter
        self._device = model_device(root)
        # Times of ops. CPU times are all stretched alike to those on the wall (finish). Looking at
        # the clock takes time that is no op's.
        self._clock = work_clock(self._device)
        self._stream = stream_of(self._device)
        self._home: Any = None  # the stream on which the step began
        self._look_ns = 0
        self._begin_clock = 0
        self._ops: list[CapturedOp] = []
        parameters = {p.untyped_storage()._cdata: n for n, p in root.named_parameters()}
        self._storages = Storages(self._ops, parameters)
        self._slots: list[SavedTensor] = []
        self._unpacked = Unpacked(self._ops)
        self._regions: list[tuple[int, int]] = []
        self._in_region = False
        self._keep_all = 0
        self._packing = False
        self._in_optimizer = False
        self._seen_backward = False
        self._modules: list[tuple[str, int]] = [("", 0)]
        self._calls: Counter[str] = Counter()
        self._ordinals: Counter[tuple[str, int, str]] = Counter()
        self._handles: list[Any] = []
        self.thread = 0
        self._begin_ns = 0
        self._live_begin = 0
        self._peak = 0

    # ---- The step -----------------------------------------------------------

    def begin(self, prior: Iterable[Tensor], names: dict[int, tuple[str, int]]) -> None:
        """Starts the step. `prior`: tensors alive now that may die during it; `names`: name and
        category of some of them, by storage."""
        for path, module in self._root.named_modules():
            self._handles.append(module.register_forward_pre_hook(self._enters(path)))
            self._handles.append(module.register_forward_hook(self._leaves, always_call=True))
        self._ops.append(
            CapturedOp(None, "reprise.step_begin", FORWARD, OpKind.ONCE, in_region=False)
        )
        for tensor in prior:
            storage = self._storages.of(tensor)
            if storage is not None:
                cdata = tensor.untyped_storage()._cdata
                storage.name, storage.category = names.get(cdata, (storage.name, storage.category))
                self._storages.hold(tensor, storage)
        del prior
        prepare()
        self._meter.reset_peak()
        self._live_begin = self._meter.live()
        self._peak = self._live_begin
        self._hooks = Hooks(self._pack, self._unpack)
        self._hooks.__enter__()
        self.__enter__()
        self.thread = threading.get_ident()
        self._home = self._stream()
        self._look_ns = min(-self._clock() + self._clock() for _ in range(8))
        self._begin_clock = self._clock()
        self._begin_ns = now_ns(self._device)

    @contextmanager
    def region(self) -> Iterator[Callable[[Any], None]]:
        """The root's forward; call what it yields with the outputs."""
        first = len(self._ops)
        self._in_region = True
        self._modules = self._modules[:1]
        try:
            yield self._pin_outputs
        finally:
            self._in_region = False
        self._regions.append((first, len(self._ops)))

    def enter_optimizer(self) -> None:
        """From here to the end ops belong to the optimizer step."""
        self._in_optimizer = True

    def leave(self) -> None:
        """Takes every hook out again; the capture may be thrown away."""
        if self._handles:
            self._over()
            close(self)

    def _over(self) -> None:
        """What the program does from here on is nothing to us."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def on_top(self) -> bool:
        """Neither a mode nor hooks of somebody else were put on after ours."""
        stack = _get_current_dispatch_mode_stack()
        return bool(stack) and stack[-1] is self and self._hooks.on_top

    def take_off(self) -> None:
        """The mode and the hooks."""
        self.__exit__(None, None, None)
        self._hooks.__exit__(None, None, None)

    def finish(self) -> CapturedStep:
        """Ends the step."""
        step_ns = now_ns(self._device) - self._begin_ns
        stretched = max(1.0, step_ns / max(1, self._clock() - self._begin_clock))
        self.leave()
        self._peak = max(self._peak, self._meter.peak())
        live_end = self._meter.live()
        self._storages.finish()
        self._unpacked.finish()
        step = CapturedStep(
            ops=self._ops,
            storages=self._storages.all,
            slots=[self._unpacked.whose(number, slot) for number, slot in enumerate(self._slots)],
            unpacks=self._unpacked.unpacks,
            regions=self._regions,
            live_begin=self._live_begin,
            live_end=live_end,
            peak_bytes=self._peak,
            step_ns=step_ns,
            worked=self._clock is thread_time_ns,
        )
        step.stretch(stretched)
        return step

    # ---- Ops ----------------------------------------------------------------

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        if not CAPTURED_TYPES.issuperset(types):
            return NotImplemented  # a subclass: it takes its call apart, we see the inner ones
        kwargs = kwargs or {}
        if not self._handles:
            return func(*args, **kwargs)
        if func in IGNORED:
            out = func(*args, **kwargs)
            if not self._packing:
                self._follow(args, kwargs, out)
            return out
        phase = self._phase()
        arguments = tuple(tensors_in(*args, kwargs))
        read = [self._see(tensor) for tensor in arguments]
        meter = self._meter
        live = meter.live()
        self._peak = max(self._peak, meter.peak())
        meter.reset_peak()
        record = self._recorder.begin(str(func)) if self._recorder is not None else 0
        shortens = phase == FORWARD and self._in_region and has_shortcut(func, args)
        begin = self._clock()
        out = func(*args, **kwargs)
        took = max(0, self._clock() - begin - self._look_ns)
        if self._recorder is not None:
            self._recorder.end(record)
        peak = meter.peak()
        self._peak = max(self._peak, peak)

        number = len(self._ops)
        module, call = self._modules[-1]
        if phase == BACKWARD:
            module, call = self._unpacked.module, 0
        name = str(func)
        op = CapturedOp(func, name, phase, OpKind.PURE, self._in_region and phase == FORWARD)
        op.module, op.call, op.time_ns = module, call, took
        op.ordinal = self._ordinals[module, call, name]
        self._ordinals[module, call, name] += 1
        op.signature = signature_of(args, kwargs)
        if self._kernels:
            op.agent_ops.append(record)
        op.arguments = tuple(s for s in read if s is not None)
        self._ops.append(op)
        new_bytes = self._see_outputs(op, number, arguments, chosen_by(func, args, out), out)
        op.workspace_bytes = max(0, peak - live - new_bytes)
        op.live_before, op.peak_bytes, op.live_bytes = live, peak, meter.live()
        reads(op, op.arguments)
        self._unpacked.read_by(op)
        written = written_by(func, args, kwargs)
        skip = {t.untyped_storage()._cdata for t in hidden_writes(func, args)}
        for tensor in written:
            if self._host is not None:
                self._host.written(tensor)
            storage = self._see(tensor)
            if storage is not None and tensor.untyped_storage()._cdata not in skip:
                storage.mutated_by.append(number)
                if storage not in op.mutates and storage not in op.writes:
                    op.mutates.append(storage)
                    reads(op, (storage,))
        for tensor in hidden_writes(func, args):
            storage = self._see(tensor)
            if storage is not None:
                storage.mutated_by.append(number)
                op.reads.remove(storage)  # a replay neither reads nor writes them
        op.kind = kind_of(op, args, kwargs, out, arguments)
        if self._stream() != self._home:
            self._stays(op)
        if shortens and op.kind in (OpKind.PURE, OpKind.SEEDED):
            self._try_shortcut(op, args, out)
        return out

    @staticmethod
    def _stays(op: CapturedOp) -> None:
        """On a side stream. A replay runs where autograd asks for it and waits for nobody, so
        nothing that such an op makes or reads is given up."""
        if op.kind in (OpKind.PURE, OpKind.SEEDED):
            op.kind = OpKind.ONCE
        for storage in (*op.reads, *op.writes, *op.mutates):
            storage.pinned = True

    def _try_shortcut(self, op: CapturedOp, args: tuple[Any, ...], out: Any) -> None:
        """What a replay of the op will cost; in no time and no memory of the step."""
        began, clock = now_ns(self._device), self._clock()
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
            # What it is made from; autograd saves it anyway.
            storage.pinned |= storage is not op.outputs[0]
        del made, again, results
        self._meter.reset_peak()
        self._begin_ns += now_ns(self._device) - began
        self._begin_clock += self._clock() - clock

    def _phase(self) -> int:
        if torch._C._current_graph_task_id() != -1:
            self._seen_backward = True
            self._unpacked.enter()
            return BACKWARD
        self._unpacked.leave()
        if self._in_region or not (self._seen_backward or self._in_optimizer):
            return FORWARD
        return OPTIMIZER

    # ---- Storages and tensor objects ----------------------------------------

    def _see(self, tensor: Tensor) -> CapturedStorage | None:
        """An argument. A storage nobody has seen made is written by an op of its own, unless it was
        there before the step."""
        known = len(self._storages.all)
        storage = self._storages.of(tensor)
        if storage is None:
            return None
        new = len(self._storages.all) > known and not storage.prior
        if new and not self._made_unseen(storage):
            storage.birth, storage.prior = 0, True
        elif new:
            storage.birth = len(self._ops)
            external = CapturedOp(None, "reprise.external", self._phase(), OpKind.ONCE, False)
            external.writes.append(storage)
            external.live_bytes = external.peak_bytes = self._meter.live()
            self._ops.append(external)
        if not self._storages.lends(tensor):
            self._storages.hold(tensor, storage)
        return storage

    def _made_unseen(self, storage: CapturedStorage) -> bool:
        """Was it made in C++ in this step, or before, where Python never saw it (buckets of
        DistributedDataParallel)? Then nothing that is alive is left unexplained without it."""
        if not self._meter.exact:
            return True
        live = self._live_begin
        for seen in self._storages.all:
            if seen is storage:
                continue
            if seen.prior:
                live -= 0 if seen.death is None else seen.bytes
            else:
                live += seen.bytes if seen.death is None else 0
        return self._meter.live() - live >= storage.bytes

    def _see_outputs(
        self,
        op: CapturedOp,
        number: int,
        arguments: tuple[Tensor, ...],
        chosen: Chosen | None,
        out: Any,
    ) -> int:
        """Storages the op made; returns their bytes."""
        from_unpacked = any(self._storages.lends(t) for t in arguments)
        found: list[CapturedStorage | None] = []
        for tensor in tensors_in(out):
            known = len(self._storages.all)
            storage = self._storages.of(tensor)
            found.append(storage)
            if storage is None:
                continue
            if len(self._storages.all) > known:
                storage.birth, storage.prior = number, False
                storage.in_region = op.in_region
                storage.pinned = self._keep_all > 0
                storage.chosen = chosen or follow(op.arguments, tensor)
                storage.name = f"{op.module}.{op.name}" if op.module else op.name
                if op.phase != FORWARD:
                    storage.category = 6
                op.writes.append(storage)
            elif from_unpacked and storage not in op.writes:
                self._storages.lend(tensor)
                continue
            self._storages.hold(tensor, storage)
        op.outputs = tuple(found)
        return sum(s.bytes for s in op.writes)

    def _follow(self, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> None:
        """An ignored op: its outputs are objects of whoever owns its inputs."""
        ours = any(self._storages.lends(t) for t in tensors_in(*args, kwargs))
        for tensor in tensors_in(out):
            if ours:
                self._storages.lend(tensor)
            else:
                self._see(tensor)

    def keep(self, tensor: Tensor) -> None:
        """The program wants this tensor to be saved, whatever the budget."""
        storage = self._see(tensor)
        if storage is not None:
            storage.pinned = True

    def keep_all(self, on: bool) -> None:
        """The program wants everything saved that is made from here on, or no longer."""
        self._keep_all += 1 if on else -1

    def _pin_outputs(self, outputs: Any) -> None:
        for tensor in tensors_in(outputs):
            storage = self._storages.of(tensor)
            if storage is not None:
                storage.pinned = True

    # ---- What autograd saves --------------------------------------------------

    def _pack(self, tensor: Tensor) -> Any:
        alias: Tensor | HostSaved
        if type(tensor) is FakeTensor:
            # Has no other way to stay one; the alias is autograd's and not the program's.
            self._packing = True
            alias = tensor.detach()
            self._packing = False
        else:
            guard = torch._C._DisableTorchDispatch()
            try:
                on_host = None if self._host is None else self._host.pack(tensor)
                alias = tensor.detach() if on_host is None else on_host
            finally:
                del guard
        storage = self._see(tensor)
        if storage is None:
            return alias
        storage.saved = True
        if isinstance(alias, HostSaved):
            self._storages.copied(storage, alias.copy)
        slot = -1
        if self._in_region:
            slot = len(self._slots)
            version = len(storage.mutated_by) + 1
            dtype = str(tensor.dtype).removeprefix("torch.")
            shape = tuple(tensor.shape)
            self._slots.append(SavedTensor(storage, version, shape, dtype, len(self._ops)))
            if not is_plain(tensor):
                storage.pinned = True
        return _Packed(alias, slot, storage, self._modules[-1][0])

    def _unpack(self, packed: Any) -> Tensor:
        if type(packed) is not _Packed:
            return packed  # type: ignore[no-any-return]
        alias = self._at_hand(packed)
        if self._handles:
            self._phase()
            self._unpacked.take(packed.storage, packed.slot, packed.module, alias)
            self._storages.lend(alias)
        return alias

    def _at_hand(self, packed: _Packed) -> Tensor:
        """What was packed. A storage that comes back from the host is the one that went."""
        kept = packed.kept
        if isinstance(kept, Tensor):
            if kept._version != packed.version:
                raise RuntimeError(stale_message(kept, packed.version))
            return kept
        assert self._host is not None
        guard = torch._C._DisableTorchDispatch()
        try:
            made = self._host.unpack(kept)
        finally:
            del guard
        if self._handles:
            self._storages.back(packed.storage, made)
        return made

    # ---- Module paths ---------------------------------------------------------

    def _enters(self, path: str) -> Callable[[nn.Module, Any], None]:
        def enter(_: nn.Module, __: Any) -> None:
            self._modules.append((path, self._calls[path]))
            self._calls[path] += 1

        return enter

    def _leaves(self, _: nn.Module, __: Any, ___: Any) -> None:
        if len(self._modules) > 1:
            self._modules.pop()
