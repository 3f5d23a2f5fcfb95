# SPDX-License-Identifier: Apache-2.0
"""Runs a call a second time from the same inputs, in a step that finds out why values differ
(check/control.py).
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from reprise.torch.check.control import Control
from reprise.torch.internals.ops import tensors_in
from reprise.torch.tape.calls import call, copy, view
from reprise.torch.tape.records import Node, Own

__all__ = ["Twice"]


class Twice:
    """A call that runs a second time from the same inputs, so that its results can be compared."""

    def __init__(self, control: Control, node: Node, op: int, own: Tensor | None) -> None:
        """Prepares the second run; to be called before the first one. `own` is what the call writes
        in place."""
        self._control, self._node, self._op, self._own = control, node, op, own
        cells = [None if c is None else c() for c in node.outputs]
        self._storages = [None if c is None else c.id for c in cells]
        self._before = self._flipped = None
        control.begins()
        if own is not None:
            self._before = copy(own)
            if control.unsteady(self._storages[0]):
                self._flipped = control.flip(self._storages[0], copy(own))

    def compare(self, args: list[Any], kwargs: dict[str, Any], out: Any) -> None:
        """Runs the call again and compares the outputs. To be called after its first run."""
        self._compare(args, kwargs, out)
        self._control.ends(self._op)

    def _compare(self, args: list[Any], kwargs: dict[str, Any], out: Any) -> None:
        """Runs the call again on copies and shows both results to the control."""
        control, own = self._control, self._own
        if own is None or self._before is None:
            made = list(tensors_in(out))
            if self._op in control.allocating:
                control.allocated(self._storages, made)
                return
            again = tensors_in(call(self._node, args, kwargs))
            control.twice(self._op, self._storages, made, again)
            return
        if self._flipped is not None:
            self._written(self._flipped, args, kwargs)
            control.written(self._storages[0], own, self._flipped)
            self._flipped = None
        self._written(self._before, args, kwargs)
        control.twice(self._op, self._storages, [own], [self._before])

    def _written(self, copy: Tensor, args: list[Any], kwargs: dict[str, Any]) -> None:
        """Runs the call again, so that it writes `copy` instead of its target."""
        node = self._node
        call(node, _instead(node.args or [], args, copy), _instead(node.kwargs or {}, kwargs, copy))


def _instead(recorded: Any, loaded: Any, own: Tensor) -> Any:
    """Returns the loaded arguments with `own` in place of the storage that the call writes."""
    if isinstance(recorded, Own):
        return view(own, recorded.geometry)
    if isinstance(recorded, (list, tuple)):
        return [_instead(r, v, own) for r, v in zip(recorded, loaded, strict=True)]
    if isinstance(recorded, dict):
        return {key: _instead(value, loaded[key], own) for key, value in recorded.items()}
    return loaded
