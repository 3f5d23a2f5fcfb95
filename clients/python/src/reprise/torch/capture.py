# SPDX-License-Identifier: Apache-2.0
"""Watches one training step: the ops in execution order and the storages they touch.

    capture = Capture(model, meter)
    capture.begin(prior)                 # what is alive now and may die during the step
    with capture.region(): model(x)      # the root's forward; several per step with accumulation
    ...loss, backward...
    capture.enter_optimizer(); ...step...
    step = capture.finish()              # a CapturedStep

A dispatch mode sees every op below autograd and autocast, in forward, backward and optimizer.
Storages are followed by identity: a weak reference to the storage object tells when the memory
goes, weak references to the tensor objects tell when the program itself (not autograd) lets go.
Saved-tensor hooks tell what autograd saves and at which backward op it is unpacked: their packed
aliases are the one thing that is not counted as the program's.

No tensor is held across ops, so that every life is as long as without the capture, and nothing is
computed, so that every number is the same.
"""

from __future__ import annotations

import threading
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from time import thread_time_ns
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode_stack

from reprise.torch.host import HostSaved, HostSaves
from reprise.torch.meter import Meter
from reprise.torch.open_hooks import Hooks, close
from reprise.torch.ops import (
    IGNORED,
    PLAIN_TYPES,
    OpKind,
    first_kind,
    hidden_writes,
    mutated_positions,
    tensors_in,
)
from reprise.torch.shortcut import has_shortcut, prepare, shortcut
from reprise.torch.sizes import Chosen, chosen_by, follow
from reprise.torch.stale import stale_message
from reprise.torch.state import model_device, now_ns, work_clock
from reprise.torch.windows import OpRecorder

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

FORWARD, BACKWARD, OPTIMIZER = 1, 2, 3  # numbered as reprise.v1.Phase

# A step that is only estimated runs on fake tensors (estimate.py).
_CAPTURED_TYPES = PLAIN_TYPES | {FakeTensor}


@dataclass(slots=True, eq=False)
class CapturedStorage:
    """One allocation. Op numbers are positions in `CapturedStep.ops`."""

    bytes: int
    birth: int  # the op that made it; 0 also for what was alive before the step
    prior: bool  # alive before the step
    name: str = ""
    category: int = 4
    death: int | None = None  # the last op that had run when the memory went
    release: int = 0  # the last op that had run when the program let go
    holders: int = 0  # tensor objects of the program that are alive
    saved: bool = False
    pinned: bool = False
    in_region: bool = False
    chosen: Chosen | None = None  # its size depends on the data
    mutated_by: list[int] = field(default_factory=list)
    id: int = -1  # in the step graph; -1: static, not listed
    watch: weakref.ref[Any] | None = None


@dataclass(slots=True, eq=False)
class CapturedOp:
    """One operator call."""

    func: Any  # None for the synthetic ones
    name: str
    phase: int
    kind: OpKind
    in_region: bool
    module: str = ""
    call: int = 0
    ordinal: int = 0
    time_ns: int = 0
    again_ns: int = 0  # what a replay takes, where there is a shortcut to it (shortcut.py)
    kept_bytes: int = 0  # and what is kept for that
    workspace_bytes: int = 0
    node: int = -1  # number of the autograd node whose saved tensors are unpacked
    live_before: int = 0  # what the meter saw before it
    live_bytes: int = 0  # after it
    peak_bytes: int = 0  # what the meter saw while it ran
    # Storage of each tensor argument and output, in the order of `tensors_in`.
    arguments: tuple[CapturedStorage, ...] = ()
    outputs: tuple[CapturedStorage | None, ...] = ()
    reads: list[CapturedStorage] = field(default_factory=list)
    writes: list[CapturedStorage] = field(default_factory=list)
    mutates: list[CapturedStorage] = field(default_factory=list)
    signature: str = ""
    # Under which it was reported to the agent, where kernels are traced.
    agent_ops: list[int] = field(default_factory=list)


@dataclass(slots=True, frozen=True)
class SavedTensor:
    """A tensor as autograd packed it."""

    storage: CapturedStorage
    version: int  # 1 after the op that made the storage, +1 after each op that mutates it
    shape: tuple[int, ...]
    dtype: str
    op: int = 0  # the one that runs next
    output: bool = False  # of the call before it, and not an input of the next one


@dataclass(slots=True, frozen=True)
class Unpack:
    """Autograd unpacked a saved tensor just before `op` ran."""

    slot: int
    op: int


@dataclass(slots=True)
class CapturedStep:
    """What one step did. `ops[0]` is the synthetic `reprise.step_begin`."""

    ops: list[CapturedOp]
    storages: list[CapturedStorage]
    # Every tensor that autograd packed inside the root's forward, in that order.
    slots: list[SavedTensor]
    unpacks: list[Unpack]
    # First and one-past-last op of every forward call of the root.
    regions: list[tuple[int, int]]
    live_begin: int
    live_end: int
    peak_bytes: int
    step_ns: int
    # Time on the wall by CPU time, of a step computed by one thread: how busy the machine was. The
    # times of the ops are stretched by it.
    stretched: float = 1.0
    worked: bool = False  # they are of CPU times

    def stretch(self, by: float) -> None:
        """As if the machine had been that busy."""
        for op in self.ops:
            op.time_ns = int(op.time_ns * by / self.stretched)
        self.stretched = by


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
        # Copies on the host stand for storages that would be alive as long as they are.
        self._copies: dict[int, tuple[weakref.ref[Any], CapturedStorage]] = {}
        self._recorder = recorder
        self._kernels = kernels
        self._root = root
        self._meter = meter
        self._device = model_device(root)
        # Times of ops. CPU times are all stretched alike to those on the wall (finish). Looking at
        # the clock takes time that is no op's.
        self._clock = work_clock(self._device)
        self._look_ns = 0
        self._begin_clock = 0
        self._ops: list[CapturedOp] = []
        self._storages: list[CapturedStorage] = []
        self._by_cdata: dict[int, CapturedStorage] = {}
        self._objects: dict[int, weakref.ref[Tensor]] = {}
        self._unpacked_objects: dict[int, weakref.ref[Tensor]] = {}
        self._slots: list[SavedTensor] = []
        self._unpacks: list[Unpack] = []
        self._saved_by: dict[int, str] = {}  # slot -> autograd node
        self._regions: list[tuple[int, int]] = []
        self._in_region = False
        self._keep_all = 0
        self._packing = False
        self._in_optimizer = False
        self._seen_backward = False
        self._node: tuple[str, int] | None = None
        self._node_number = 0
        self._node_unpacked: list[CapturedStorage] = []
        self._alive_unpacked: list[weakref.ref[Tensor]] = []
        self._pending: list[CapturedStorage] = []
        self._node_module = ""
        self._modules: list[tuple[str, int]] = [("", 0)]
        self._calls: Counter[str] = Counter()
        self._ordinals: Counter[tuple[str, int, str]] = Counter()
        self._handles: list[Any] = []
        self.thread = 0
        self._begin_ns = 0
        self._live_begin = 0
        self._peak = 0
        self._parameters = {p.untyped_storage()._cdata: n for n, p in root.named_parameters()}

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
            storage = self._storage_of(tensor)
            if storage is not None:
                cdata = tensor.untyped_storage()._cdata
                storage.name, storage.category = names.get(cdata, (storage.name, storage.category))
                self._hold(tensor, storage)
        del prior
        prepare()
        self._meter.reset_peak()
        self._live_begin = self._meter.live()
        self._peak = self._live_begin
        self._hooks = Hooks(self._pack, self._unpack)
        self._hooks.__enter__()
        self.__enter__()
        self.thread = threading.get_ident()
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
        if self._pending:
            self._read(self._ops[-1], self._pending)
        last = len(self._ops) - 1
        for copy, storage in self._copies.values():
            if copy() is not None:
                storage.death = None
        for storage in self._storages:
            storage.watch = None
            if storage.holders > 0:
                storage.release = last
        self._objects.clear()
        self._unpacked_objects.clear()
        self._alive_unpacked.clear()
        step = CapturedStep(
            ops=self._ops,
            storages=self._storages,
            slots=[self._whose(number, slot) for number, slot in enumerate(self._slots)],
            unpacks=self._unpacks,
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
        if not _CAPTURED_TYPES.issuperset(types):
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
            module, call = self._node_module, 0
        name = str(func)
        op = CapturedOp(func, name, phase, OpKind.PURE, self._in_region and phase == FORWARD)
        op.module, op.call, op.time_ns = module, call, took
        op.ordinal = self._ordinals[module, call, name]
        self._ordinals[module, call, name] += 1
        op.signature = _signature(args, kwargs)
        if self._kernels:
            op.agent_ops.append(record)
        op.arguments = tuple(s for s in read if s is not None)
        self._ops.append(op)
        new_bytes = self._see_outputs(op, number, arguments, chosen_by(func, args, out), out)
        op.workspace_bytes = max(0, peak - live - new_bytes)
        op.live_before, op.peak_bytes, op.live_bytes = live, peak, meter.live()
        self._read(op, (*op.arguments, *self._pending, *self._node_unpacked))
        self._node_unpacked.extend(self._pending)
        self._pending.clear()
        if self._node_unpacked:
            op.node = self._node_number
        written = self._written(func, args, kwargs)
        skip = {t.untyped_storage()._cdata for t in hidden_writes(func, args)}
        for tensor in written:
            if self._host is not None:
                self._host.written(tensor)
            storage = self._see(tensor)
            if storage is not None and tensor.untyped_storage()._cdata not in skip:
                storage.mutated_by.append(number)
                if storage not in op.mutates and storage not in op.writes:
                    op.mutates.append(storage)
                    self._read(op, (storage,))
        for tensor in hidden_writes(func, args):
            storage = self._see(tensor)
            if storage is not None:
                storage.mutated_by.append(number)
                op.reads.remove(storage)  # a replay neither reads nor writes them
        op.kind = self._kind(op, args, kwargs, out, arguments)
        if shortens and op.kind in (OpKind.PURE, OpKind.SEEDED):
            self._try_shortcut(op, args, out)
        return out

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
            self._enter_node()
            return BACKWARD
        self._node = None
        self._node_unpacked.clear()
        if self._in_region or not (self._seen_backward or self._in_optimizer):
            return FORWARD
        return OPTIMIZER

    def _enter_node(self) -> None:
        """Which autograd node runs; what an earlier one unpacked is gone with it."""
        node: Any = torch._C._current_autograd_node()
        key = None if node is None else (node.name(), node._sequence_nr())
        if key != self._node:
            self._node = key
            self._node_number += 1
            self._node_unpacked.clear()
            self._node_module = ""

    @staticmethod
    def _read(op: CapturedOp, storages: Iterable[CapturedStorage]) -> None:
        for storage in storages:
            if storage not in op.reads and storage not in op.writes:
                op.reads.append(storage)

    @staticmethod
    def _written(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Tensor]:
        found = []
        for at in mutated_positions(func):
            if isinstance(at, str):
                found.append(kwargs.get(at))
            else:
                found.append(args[at] if at < len(args) else None)
        return list(tensors_in(*found))

    def _kind(
        self,
        op: CapturedOp,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        out: Any,
        arguments: tuple[Tensor, ...],
    ) -> OpKind:
        """May this call run again? Decided by what was seen, not by the schema alone."""
        outputs = tuple(tensors_in(out))
        aliases = {s for s in op.outputs if s is not None} - set(op.writes)
        if outputs and not op.writes and not op.mutates and aliases <= set(op.arguments):
            return OpKind.VIEW
        kind = first_kind(op.func, args, kwargs)
        if kind in (OpKind.ONCE, OpKind.COLLECTIVE):
            return kind
        if op.phase != FORWARD:
            return OpKind.ONCE if op.mutates else kind
        simple = all(_is_plain(t) for t in (*arguments, *outputs))
        if not op.in_region or not outputs or not simple:
            return OpKind.ONCE
        if op.mutates:
            # A follower of the op that made the storage, replayed on a private copy with it.
            (*others, target) = op.mutates
            alone = not others and not op.writes and target.in_region and not target.prior
            return kind if alone and aliases <= {target} else OpKind.ONCE
        return OpKind.ONCE if aliases else kind

    # ---- Storages and tensor objects ----------------------------------------

    def _storage_of(self, tensor: Tensor) -> CapturedStorage | None:
        """The storage behind a tensor, first seen now if it is not known; None: it has none."""
        try:
            storage = tensor.untyped_storage()
        except (NotImplementedError, RuntimeError):
            return None
        cdata = storage._cdata
        known = self._by_cdata.get(cdata)
        if known is not None and known.watch is not None and known.watch() is storage:
            return known
        at = len(self._ops) - 1
        prior = at == 0
        seen = CapturedStorage(bytes=storage.nbytes(), birth=max(at, 0), prior=prior)
        if cdata in self._parameters:
            seen.name, seen.category, seen.prior = self._parameters[cdata], 1, True

        seen.watch = weakref.ref(storage, self._died(seen))
        self._by_cdata[cdata] = seen
        self._storages.append(seen)
        return seen

    def _died(self, seen: CapturedStorage) -> Callable[[Any], None]:
        def died(_: Any) -> None:
            seen.death = len(self._ops) - 1

        return died

    def _copy_gone(self, seen: CapturedStorage) -> Callable[[Any], None]:
        def gone(_: Any) -> None:
            if seen.death is not None:
                seen.death = len(self._ops) - 1

        return gone

    def _see(self, tensor: Tensor) -> CapturedStorage | None:
        """An argument. A storage nobody has seen made is written by an op of its own."""
        known = len(self._storages)
        storage = self._storage_of(tensor)
        if storage is None:
            return None
        if len(self._storages) > known and not storage.prior:
            storage.birth = len(self._ops)
            external = CapturedOp(None, "reprise.external", self._phase(), OpKind.ONCE, False)
            external.writes.append(storage)
            external.live_bytes = external.peak_bytes = self._meter.live()
            self._ops.append(external)
        if id(tensor) not in self._unpacked_objects:
            self._hold(tensor, storage)
        return storage

    def _see_outputs(
        self,
        op: CapturedOp,
        number: int,
        arguments: tuple[Tensor, ...],
        chosen: Chosen | None,
        out: Any,
    ) -> int:
        """Storages the op made; returns their bytes."""
        from_unpacked = any(id(t) in self._unpacked_objects for t in arguments)
        found: list[CapturedStorage | None] = []
        for tensor in tensors_in(out):
            known = len(self._storages)
            storage = self._storage_of(tensor)
            found.append(storage)
            if storage is None:
                continue
            if len(self._storages) > known:
                storage.birth, storage.prior = number, False
                storage.in_region = op.in_region
                storage.pinned = self._keep_all > 0
                storage.chosen = chosen or follow(op.arguments, tensor)
                storage.name = f"{op.module}.{op.name}" if op.module else op.name
                if op.phase != FORWARD:
                    storage.category = 6
                op.writes.append(storage)
            elif from_unpacked and storage not in op.writes:
                self._unpacked_objects[id(tensor)] = weakref.ref(tensor, self._forget(tensor))
                continue
            self._hold(tensor, storage)
        op.outputs = tuple(found)
        return sum(s.bytes for s in op.writes)

    def _hold(self, tensor: Tensor, storage: CapturedStorage) -> None:
        """Counts a tensor object as the program's until it dies."""
        key = id(tensor)
        if key in self._objects:
            return
        storage.holders += 1

        def gone(_: Any) -> None:
            if self._objects.pop(key, None) is not None:
                storage.holders -= 1
                if storage.holders == 0:
                    storage.release = len(self._ops) - 1

        self._objects[key] = weakref.ref(tensor, gone)

    def _follow(self, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> None:
        """An ignored op: its outputs are objects of whoever owns its inputs."""
        ours = any(id(t) in self._unpacked_objects for t in tensors_in(*args, kwargs))
        for tensor in tensors_in(out):
            if ours:
                self._unpacked_objects[id(tensor)] = weakref.ref(tensor, self._forget(tensor))
            else:
                self._see(tensor)

    def _forget(self, tensor: Tensor) -> Callable[[Any], None]:
        key = id(tensor)

        def gone(_: Any) -> None:
            self._unpacked_objects.pop(key, None)

        return gone

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
            storage = self._storage_of(tensor)
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
        if isinstance(alias, HostSaved) and id(alias.copy) not in self._copies:
            gone = self._copy_gone(storage)
            self._copies[id(alias.copy)] = (weakref.ref(alias.copy, gone), storage)
        slot = -1
        if self._in_region:
            slot = len(self._slots)
            version = len(storage.mutated_by) + 1
            dtype = str(tensor.dtype).removeprefix("torch.")
            shape = tuple(tensor.shape)
            self._slots.append(SavedTensor(storage, version, shape, dtype, len(self._ops)))
            if not _is_plain(tensor):
                storage.pinned = True
        return _Packed(alias, slot, storage, self._modules[-1][0])

    def _unpack(self, packed: Any) -> Tensor:
        if type(packed) is not _Packed:
            return packed  # type: ignore[no-any-return]
        alias = self._at_hand(packed)
        if self._handles:
            self._phase()
            self._pending.append(packed.storage)
            self._node_module = packed.module
            if packed.slot >= 0:
                self._unpacks.append(Unpack(packed.slot, len(self._ops)))
                if self._node is not None:
                    self._saved_by.setdefault(packed.slot, self._node[0])
            self._unpacked_objects[id(alias)] = weakref.ref(alias, self._forget(alias))
            self._alive_unpacked.append(weakref.ref(alias, self._released(packed.storage)))
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
        storage, seen = made.untyped_storage(), packed.storage
        if self._handles and (seen.watch is None or seen.watch() is not storage):
            seen.watch = weakref.ref(storage, self._died(seen))
            self._by_cdata[storage._cdata] = seen
        return made

    def _whose(self, number: int, slot: SavedTensor) -> SavedTensor:
        """Is it an output of the last call or an input of the next one? Autograd does not say; the
        name of the node that unpacks it does, mostly. In doubt an output."""
        before = self._ops[slot.op - 1]
        made = (*before.writes, *before.mutates, *before.outputs)
        if all(storage is not slot.storage for storage in made):
            return slot
        node = _plain_name(self._saved_by.get(number, "").partition("Backward")[0])
        after = self._ops[slot.op].name if slot.op < len(self._ops) else ""
        following = _plain_name(after.split(".")[1] if "." in after else "")
        own = _plain_name(before.name.split(".")[1] if "." in before.name else "")
        return replace(slot, output=node == own or node != following)

    def _released(self, storage: CapturedStorage) -> Callable[[Any], None]:
        """The engine releases what a node saved when it returns, and only then adds up gradients,
        still under the node's name: those additions do not hold it."""

        def gone(_: Any) -> None:
            if storage in self._node_unpacked:
                self._node_unpacked.remove(storage)

        return gone

    # ---- Module paths ---------------------------------------------------------

    def _enters(self, path: str) -> Callable[[nn.Module, Any], None]:
        def enter(_: nn.Module, __: Any) -> None:
            self._modules.append((path, self._calls[path]))
            self._calls[path] += 1

        return enter

    def _leaves(self, _: nn.Module, __: Any, ___: Any) -> None:
        if len(self._modules) > 1:
            self._modules.pop()


def _is_plain(tensor: Tensor) -> bool:
    """Strided, its bits are its values: can be made again from its storage and strides."""
    return (
        type(tensor) in _CAPTURED_TYPES
        and tensor.layout == torch.strided
        and not tensor.is_conj()
        and not tensor.is_neg()
        and not tensor.is_quantized
    )


def _plain_name(name: str) -> str:
    """Of an operator or of its autograd node."""
    return name.replace("_", "").lower()


def _signature(args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    """Data types, ranks and argument kinds; no sizes."""

    def of(value: Any) -> str:
        if isinstance(value, Tensor):
            return f"{value.dtype}:{value.dim()}:{value.device.type}"
        if isinstance(value, (list, tuple)):
            if all(isinstance(v, int) for v in value):
                return f"ints:{len(value)}"
            return "[" + ",".join(of(v) for v in value) + "]"
        return type(value).__name__

    return ",".join([*(of(v) for v in args), *(f"{k}={of(v)}" for k, v in kwargs.items())])
