# SPDX-License-Identifier: Apache-2.0
"""The records of a step that began in fast.cc, as those of Python, where it goes on.

    track.hand_over(adopt)               # what fast.cc has, in the tuples of compiled/handover.h

Happens when something is not as planned, and before a step whose replays are drawn. Afterwards
everything is as if the step had been in Python from its beginning.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from typing import Any, Protocol

import torch
from torch import Tensor

from reprise.torch.compiled.shortcut import shortcut_from
from reprise.torch.internals.generator import GeneratorState
from reprise.torch.internals.geometry import Geometry
from reprise.torch.internals.ops import computes_statistics, without_statistics
from reprise.torch.tape.program import Program
from reprise.torch.tape.records import Cell, Held, Node, Own, Ref, mark_storage

__all__ = ["adopt"]


class Run(Protocol):
    """The step whose records these become (tape_run.py)."""

    @property
    def program(self) -> Program:
        """The program that the step runs."""

    def remember(self, op: int, node: Node) -> None:
        """Keeps the record of an op, weakly."""


def adopt(run: Run, records: tuple[list[Any], list[Any]], refs: list[Any]) -> list[Ref]:
    """Makes the records of a step; returns the refs, in their order."""
    with torch._C.DisableTorchFunction():
        nodes, cells = _nodes_and_cells(run, *records)
        made = [_ref(run, cells, shown) for shown in refs]
        for cell, shown in zip(cells, records[1], strict=True):
            cell.waiting = dict(shown[6])
        for node, shown in zip(nodes, records[0], strict=True):
            run.remember(run.program.rows[shown[0]].op, node)
        return made


def _nodes_and_cells(
    run: Run, shown_nodes: list[Any], shown_cells: list[Any]
) -> tuple[list[Node], list[Cell]]:
    nodes = [Node(run.program.rows[row].func, replays) for row, replays, *_ in shown_nodes]
    cells = []
    for number, chain, dtype, tensor, version, uses, _, storage in shown_cells:
        cell = Cell(number, nodes[chain[0]], dtype, run)
        cell.chain = [None if at < 0 else nodes[at] for at in chain]
        cell.tensor, cell.version, cell.uses = tensor, version, uses
        if storage is not None:
            mark_storage(storage, cell)
        cells.append(cell)
    for node, shown in zip(nodes, shown_nodes, strict=True):
        _fill(node, cells, shown)
    return nodes, cells


def _fill(node: Node, cells: list[Cell], shown: tuple[Any, ...]) -> None:
    _, _, grad, gone, values, held, own, outputs, device, state, mean, deviation, bits = shown
    node.grad = grad
    node.outputs = [None if at < 0 else weakref.ref(cells[at]) for at in outputs]
    if gone:
        node.forget()
        return
    node.held = [_held(cells, *what) for _, _, *what in held]
    places: Iterator[tuple[int, int, Held | Own]] = iter(
        [(at, item, h) for (at, item, *_), h in zip(held, node.held, strict=True)]
        + [(at, item, Own(_geometry(g))) for at, item, g in own]
    )
    for at, item, value in places:
        if item < 0:
            values[at] = value
        else:
            values[at][item] = value
    if computes_statistics(node.func, values):
        node.func, left = without_statistics(node.func, tuple(values))
        values = list(left)
    named = [a.name if a.kwarg_only else "" for a in node.func._schema.arguments]
    node.args = [v for v, name in zip(values, named, strict=True) if not name]
    node.kwargs = {name: v for v, name in zip(values, named, strict=True) if name}
    node.func = getattr(node.func, "_op", node.func)
    if state is not None:
        node.state = GeneratorState(device, state)
    node.short = shortcut_from(mean, deviation, bits)


def _held(
    cells: list[Cell],
    tensor: Tensor | None,
    stale: int,
    reads: int,
    at: int,
    version: int,
    geometry: tuple[Any, ...],
) -> Held:
    cell = None if at < 0 else cells[at]
    held = Held(tensor, reads, cell, version, None if cell is None else _geometry(geometry))
    held.stale = stale
    return held


def _ref(run: Run, cells: list[Cell], shown: tuple[Any, ...]) -> Ref:
    slot, cell, version, geometry, made, given, firsts, stale = shown
    ref = Ref(run, slot, cells[cell], version, _geometry(geometry))
    ref.made, ref.given, ref.firsts, ref.stale = made, given, firsts, stale
    return ref


def _geometry(shown: tuple[Any, ...]) -> Geometry:
    sizes, strides, offset = shown
    return torch.Size(sizes), tuple(strides), offset
