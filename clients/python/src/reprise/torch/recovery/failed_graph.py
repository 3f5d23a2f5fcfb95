# SPDX-License-Identifier: Apache-2.0
"""The graph of a backward that ran out of memory.

    leaves(heads)           # the tensors that it adds gradients to
    release_graph(heads)    # releases what it still holds

Each is one walk through the graph.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import Tensor

from reprise.torch.compiled import fast
from reprise.torch.tape.records import Kept, Ref


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
    """Yields the tensors that a backward adds gradients to."""
    return (node.variable for node in _nodes(heads) if hasattr(node, "variable"))


def release_graph(heads: Any) -> None:
    """Releases what autograd has saved for a backward that will not run again, as if it had run.
    Without the native engine, releases only what went through our hooks: all of it, then."""
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
