# SPDX-License-Identifier: Apache-2.0
"""The graph of a backward that ran out of memory.

    found, alone = reach(heads, outputs)     # before it runs: where it comes to the model
    leaves(heads)                            # after it failed: whose gradients it is about
    let_go(heads)                            # what it still holds

Each is one walk through the graph; the first ends at the model's outputs.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import Tensor

from reprise.torch.compiled import fast
from reprise.torch.tape.records import Kept, Ref

__all__ = ["leaves", "let_go", "reach"]


def reach(
    heads: Any, outputs: dict[tuple[int, str, int], int]
) -> tuple[list[tuple[Any, int, int]], bool]:
    """The nodes of outputs that a backward comes to from outside, with the number of the output
    among those of its node, and its position; and whether no parameter is on the way there."""
    known = {(nr, name) for nr, name, _ in outputs}
    todo = [(h.grad_fn, h.output_nr) for h in heads if isinstance(h, Tensor)]
    found, seen, alone = [], set(), True
    while todo:
        node, number = todo.pop()
        if node is None or (node, number) in seen:
            continue
        seen.add((node, number))
        name = (node._sequence_nr(), node.name())
        if name in known:
            position = outputs.get((*name, number))
            if position is None:
                alone = False  # another output of the same call than those the model returned
            else:
                found.append((node, number, position))
        elif hasattr(node, "variable"):
            alone = False
        else:
            todo.extend(node.next_functions)
    return found, alone


def _nodes(heads: Any) -> Iterator[Any]:
    todo = [head.grad_fn for head in heads if isinstance(head, Tensor)]
    seen = set()
    while todo:
        node = todo.pop()
        if node is not None and node not in seen:
            seen.add(node)
            yield node
            todo.extend(following for following, _ in node.next_functions)


def leaves(heads: Any) -> Iterator[Tensor]:
    """What a backward would add gradients to."""
    return (node.variable for node in _nodes(heads) if hasattr(node, "variable"))


def let_go(heads: Any) -> None:
    """What autograd has saved for a backward that will not be: as if it had run. What fast.cc is
    not there for is only what went through our hooks: in Python, all of it."""
    module = fast.library()
    if module is not None:
        module.let_go([head for head in heads if isinstance(head, Tensor)])
        return
    for node in _nodes(heads):
        for name in dir(node):
            if name.startswith("_raw_saved"):
                saved = getattr(node, name, None)
                for one in saved if isinstance(saved, (list, tuple)) else (saved,):
                    kept = getattr(one, "data", None)
                    if isinstance(kept, (Kept, Ref)):
                        kept.let_go()
