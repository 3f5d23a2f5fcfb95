# SPDX-License-Identifier: Apache-2.0
"""Lists what the backward pass of a step keeps, and why.

print(reprise.saved(model, step))

 bytes      made by                             because backward reads it in
 8.0 MiB    layers.0.conv1  aten.convolution    aten.native_batch_norm_backward (layers.0.bn1)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import nn

from reprise.base.notebook import page
from reprise.base.units import format_bytes
from reprise.torch.capture.captured import BACKWARD
from reprise.torch.estimation.once import capture_step

# Rows that a notebook shows.
SHOWN = 20


@dataclass(frozen=True, slots=True)
class SavedStorage:
    """One storage that autograd keeps between forward and backward."""

    bytes: int
    module: str
    op: str
    shapes: tuple[tuple[int, ...], ...]  # of its saved tensors
    readers: tuple[str, ...]  # ops of the backward that read it
    program_holds_it: bool  # whether it would be alive without autograd, too
    may_be_recomputed: bool

    @property
    def row(self) -> tuple[str, str, str]:
        """Its bytes, what made it, and why it is kept, in words."""
        why = ", ".join(self.readers) or "nothing (saved but never read)"
        notes = "; held by the program" if self.program_holds_it else ""
        notes += "" if self.may_be_recomputed else "; cannot be recomputed"
        made = f"{self.module} {self.op}".strip()
        return format_bytes(self.bytes), made, f"read by {why}{notes}"


@dataclass(frozen=True, slots=True)
class Saved:
    """All saved storages, the largest first."""

    storages: tuple[SavedStorage, ...]

    @property
    def bytes(self) -> int:
        """The sum of all saved bytes."""
        return sum(s.bytes for s in self.storages)

    def __str__(self) -> str:
        lines = [f"{format_bytes(self.bytes)} are kept for the backward pass"]
        for size, made, why in (s.row for s in self.storages):
            lines.append(f"{size:>10}  {made}  {why}")
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        rows = [s.row for s in self.storages[:SHOWN]]
        if rest := self.storages[SHOWN:]:
            rows.append((format_bytes(sum(s.bytes for s in rest)), f"{len(rest)} more", ""))
        said = f"{format_bytes(self.bytes)} are kept for the backward pass."
        return page(said, {}, rows=rows)


def saved(model: nn.Module, step: Callable[[], Any]) -> Saved:
    """Runs one training step and returns what its backward keeps of the forward. Parameters and
    what was alive before the step are not listed."""
    graph = capture_step(model, step)
    ops = graph.step.ops
    backward = next((i for i, op in enumerate(ops) if op.phase == BACKWARD), len(ops))
    found = []
    for storage in graph.storages:
        if not storage.saved or storage.prior or storage.birth >= backward:
            continue
        made = ops[storage.birth]
        readers: list[str] = []
        for op in ops[backward:]:
            if storage in op.reads and op.phase == BACKWARD:
                where = f"{op.name} ({op.module})" if op.module else op.name
                if where not in readers:
                    readers.append(where)
        makers = [made, *(ops[i] for i in storage.mutated_by if i < backward)]
        found.append(
            SavedStorage(
                bytes=storage.bytes,
                module=made.module,
                op=made.name,
                shapes=tuple(
                    dict.fromkeys(s.shape for s in graph.step.slots if s.storage is storage)
                ),
                readers=tuple(readers),
                program_holds_it=graph.release[storage.id] >= backward,
                may_be_recomputed=not storage.pinned
                and all(op.kind.name in ("PURE", "SEEDED") for op in makers),
            )
        )
    return Saved(tuple(sorted(found, key=lambda s: -s.bytes)))
