# SPDX-License-Identifier: Apache-2.0
"""Recomputes a storage when the step no longer follows its plan: from the records and from the
copies that are present, whatever the program says.

    tensor = make_on_demand(counts, cell, version)

Nothing is counted down and nothing is freed. Copies stay with their cells, because then time
matters more than memory. It loops instead of recursing: chains are thousands of calls long.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from torch import Tensor

from reprise.base.errors import RepriseError
from reprise.torch.internals.ambient import Surroundings
from reprise.torch.internals.ops import tensors_in
from reprise.torch.tape.calls import alone, call, copy, load
from reprise.torch.tape.records import Cell

# Copies made on demand, by cell and version.
_Memo = dict[tuple[int, int], Tensor]


def make_on_demand(counts: Any, cell: Cell, version: int) -> Tensor:
    """Returns a copy of a cell at this version; `counts` are those of its step. Raises RepriseError
    if it cannot be recomputed."""
    return alone(_make_all, counts, cell, version)


def _make_all(counts: Any, cell: Cell, version: int) -> Tensor:
    """Makes everything that the copy needs, then the copy, every call in the state in which it was
    recorded."""
    memo: _Memo = {}
    todo = [(cell, version)]
    with Surroundings() as around:
        while todo:
            target, at = todo[-1]
            if _find(memo, target, at) is not None:
                todo.pop()
                continue
            missing = []
            for node in target.chain[_start(memo, target, at) : at]:
                assert node is not None
                for held in node.held:
                    source = held.cell if held.tensor is None else None
                    if source is not None and _find(memo, source, held.version) is None:
                        missing.append((source, held.version))
            if missing:
                todo += missing
            else:
                counts.on_demand += _make(memo, target, at, around)
    made = _find(memo, cell, version)
    assert made is not None
    return made


def _make(memo: _Memo, target: Cell, version: int, around: Surroundings) -> int:
    """Runs the calls that make a cell at this version, and returns how many these are. Their inputs
    must be present."""
    start = _start(memo, target, version)
    own = copy(_find(memo, target, start)) if start else None
    for node in target.chain[start:version]:
        assert node is not None
        args = load(node.args or (), own, partial(_find, memo))
        kwargs = load(node.kwargs, own, partial(_find, memo))
        around.be(node.around)
        out = call(node, args, kwargs)
        if own is not None:
            continue
        for reference, tensor in zip(node.outputs, tensors_in(out), strict=False):
            cell = None if reference is None else reference()
            if cell is target:
                own = tensor
            elif cell is not None and _find(memo, cell, 1) is None and len(cell.chain) == 1:
                _keep(memo, cell, 1, tensor)
    assert own is not None
    _keep(memo, target, version, own)
    return version - start


def _find(memo: _Memo, cell: Cell, version: int) -> Tensor | None:
    """Returns a copy that is present; None if there is none."""
    if cell.tensor is not None and cell.version == version:
        return cell.tensor
    return memo.get((id(cell), version))


def _keep(memo: _Memo, cell: Cell, version: int, tensor: Tensor) -> None:
    """Stores a copy in the memo, and in its cell if that has none."""
    memo[id(cell), version] = tensor
    if cell.tensor is None:
        cell.tensor, cell.version = tensor, version


def _start(memo: _Memo, cell: Cell, version: int) -> int:
    """Returns the version from which a cell is made: 0 if all its calls are recorded, otherwise
    that of the copy that is present. Raises RepriseError if there is neither."""
    if cell.recorded(0, version):
        return 0
    for start in range(version - 1, 0, -1):
        if not cell.recorded(start, start + 1):
            break
        if _find(memo, cell, start) is not None:
            return start
    raise RepriseError(
        f"storage {cell.id} of this step's plan cannot be recomputed at version {version}: an "
        "internal error in Reprise, please report it; set REPRISE_DISABLE=1 to train without it"
    )
