# SPDX-License-Identifier: Apache-2.0
"""The data of a captured step: ops in execution order, the storages they touch, what autograd saved
and when it read it.

capture.py fills it in while the step runs; afterwards nothing changes it. Everything that reads a
step (fuse.py, step_graph.py, program.py) reads this.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass, field
from typing import Any

from reprise.torch.internals.ops import OpKind

FORWARD, BACKWARD, OPTIMIZER = 1, 2, 3  # numbered as reprise.v1.Phase


@dataclass(frozen=True, slots=True)
class Chosen:
    """How many rows the data selected in the captured step, and the most to expect."""

    rows: int
    most: int

    def largest(self, size: int) -> int:
        """Returns the bytes for the most rows, at the same number of bytes per row."""
        return size * self.most // self.rows if self.rows else size


@dataclass(slots=True, eq=False)
class CapturedStorage:
    """One allocation. Op numbers are positions in `CapturedStep.ops`."""

    bytes: int
    birth: int  # the op that made it; 0 also for what was alive before the step
    prior: bool  # alive before the step
    dtype: Any = None  # of the first tensor seen on it
    name: str = ""
    category: int = 4
    death: int | None = None  # the last op that had run when the memory was freed
    release: int = 0  # the last op that had run when the program released its last tensor on it
    holders: int = 0  # tensor objects of the program that are alive
    kept_until: int = 0  # the last op that had run when autograd let go of what it kept instead
    saved: bool = False
    pinned: bool = False  # no plan may discard it
    in_region: bool = False
    chosen: Chosen | None = None  # its size depends on the data
    began: int = 0  # its bytes when the step began, if it is known to have been there
    mutated_by: list[int] = field(default_factory=list)
    # A parameter that is gathered (lent.py): the ops that filled it, with its bytes; and the last
    # op that had run each time it was emptied.
    filled: list[tuple[int, int]] = field(default_factory=list)
    emptied: list[int] = field(default_factory=list)
    # The collectives that wrote it, with its bytes then (changing.py).
    collected: list[tuple[int, int]] = field(default_factory=list)
    id: int = -1  # in the step graph; -1: static, not listed
    watch: weakref.ref[Any] | None = None


@dataclass(slots=True, eq=False)
class CapturedOp:
    """One operator call: what it read, wrote and modified, how long it took, how much memory was
    alive."""

    func: Any  # None for synthetic ops
    name: str
    phase: int
    kind: OpKind
    in_region: bool
    module: str = ""
    call: int = 0
    ordinal: int = 0
    source: str = ""  # the line of the program, "model.py:212"; of a backward, its forward's
    time_ns: int = 0
    again_ns: int = 0  # the time of a replay, if there is a shortcut for it (shortcut.py)
    kept_bytes: int = 0  # what is kept for the shortcut
    workspace_bytes: int = 0
    side: bool = False  # ran on another stream than the one on which the step began
    covered: bool = False  # ran under saved-tensor hooks of the program, as in a checkpoint
    echo: bool = False  # a view of fake tensors that no real step makes (fuse.py)
    node: int = -1  # number of the autograd node whose saved tensors it reads
    first: CapturedOp | None = None  # of a fused node: its first op; the name is that of another
    live_before: int = 0  # live bytes before it, as the meter counts
    live_bytes: int = 0  # live bytes after it
    peak_bytes: int = 0  # the peak while it ran
    # Storage of each tensor argument and output, in the order of `tensors_in`.
    arguments: tuple[CapturedStorage, ...] = ()
    outputs: tuple[CapturedStorage | None, ...] = ()
    reads: list[CapturedStorage] = field(default_factory=list)
    writes: list[CapturedStorage] = field(default_factory=list)
    mutates: list[CapturedStorage] = field(default_factory=list)
    signature: str = ""
    # First and last op of each stretch before whose ops it may be replayed; empty: anywhere.
    replay_windows: list[tuple[int, int]] = field(default_factory=list)
    # The numbers under which it was reported to the agent, if kernels are traced.
    agent_ops: list[int] = field(default_factory=list)


@dataclass(slots=True, frozen=True)
class SavedTensor:
    """A tensor that autograd saved, as it was when it was packed."""

    storage: CapturedStorage
    version: int  # 1 after the op that made the storage, +1 after each op that mutates it
    shape: tuple[int, ...]
    dtype: str
    op: int = 0  # the op that runs next
    output: bool = False  # whether it is an output of the last op, not an input of the next one
    in_wrapper: bool = False  # whether it is the part of a wrapper, such as the shard of a DTensor


@dataclass(slots=True, frozen=True)
class Unpack:
    """Autograd unpacked a saved tensor just before `op` ran. `kept` is true if that backward keeps
    its graph for another one."""

    slot: int
    op: int
    kept: bool = False


@dataclass(slots=True)
class CapturedStep:
    """What one step did. `ops[0]` is the synthetic `reprise.step_begin`."""

    ops: list[CapturedOp]
    storages: list[CapturedStorage]
    # Every tensor that autograd packed inside the root's forward, in order.
    slots: list[SavedTensor]
    unpacks: list[Unpack]
    # First and one-past-last op of every forward call of the root.
    regions: list[tuple[int, int]]
    live_begin: int
    live_end: int
    peak_bytes: int
    step_ns: int
    # Wall time divided by CPU time, if one thread computed the step: how busy the machine was. The
    # times of the ops are multiplied by it.
    stretched: float = 1.0
    worked: bool = False  # whether the times are CPU times
    # Whether its saved tensors did not all stay on the device, so that its peak is not that of a
    # plain step.
    apart: bool = False
    # The name of a foreign op that writes parameters within the step, so that their readers never
    # run again; empty if there is none.
    filled_by: str = ""
    # The storages of the model's parameters, of which gathered ones are made.
    parameters: frozenset[int] = frozenset()
    missing_bytes: int = 0  # of gradients that were not there when it began

    @property
    def varies(self) -> bool:
        """Whether the data decides sizes within the step."""
        return any(storage.chosen is not None for storage in self.storages)

    def stretch(self, by: float) -> None:
        """Scales all times as if the machine had been busy by this factor."""
        for op in self.ops:
            op.time_ns = int(op.time_ns * by / self.stretched)
            op.again_ns = int(op.again_ns * by / self.stretched)
        self.stretched = by
