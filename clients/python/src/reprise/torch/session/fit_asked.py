# SPDX-License-Identifier: Apache-2.0
"""How large the inputs of a program may be: what `reprise fit` asks the process that trains.

    answer(model, args, kwargs)      # its first training forward is about to run

The sizes are those of one dimension of the inputs, of every tensor that has the size of the first
one there. The answer is written to the file that the command names, and the program ends.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

from torch import nn
from torch.utils._pytree import tree_leaves, tree_map

from reprise.base.budget import Budget
from reprise.base.errors import RepriseError
from reprise.base.saying import say
from reprise.torch.capture.step_graph import CapturedGraph
from reprise.torch.estimation.fit import Fit, searched
from reprise.torch.estimation.shape import Shape, shapes_of
from reprise.torch.estimation.sketch import sketched
from reprise.torch.internals.distributed import several_ranks
from reprise.torch.internals.guard import described
from reprise.torch.meter.room import in_bytes
from reprise.torch.meter.state import alive_bytes, model_device


def answer(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Answers for a step whose first forward is called with these arguments, and ends the
    program."""
    file = Path(os.environ.pop("REPRISE_FIT_TO"))
    said: dict[str, Any] = {"why": ""}
    try:
        eager = getattr(model, "_orig_mod", model)
        now, found = _found(eager, args, kwargs)
    except RepriseError as error:
        said["why"] = str(error)
    except Exception as error:  # of ours: the program has not begun to train
        said["why"] = f"an internal error in Reprise ({described(error)})"
    else:
        text = f"{found}\nThe program's own size is {now}."
        if eager is not model:
            text += " These are steps of the model without torch.compile."
        said |= {"fit": asdict(found), "text": text}
    part = file.with_suffix(".part")
    part.write_text(json.dumps(said))
    part.rename(file)
    raise SystemExit(0)


def _found(model: nn.Module, args: Any, kwargs: Any) -> tuple[int, Fit]:
    """Returns the size of the inputs now, and the sizes that fit."""
    if several_ranks():
        raise RepriseError("it is asked of one process; start the program without its other ranks")
    dimension = int(os.environ.get("REPRISE_FIT_DIMENSION", "0"))
    shapes = shapes_of((args, kwargs))
    first = next((x for x in _shapes(shapes) if len(x.size) > dimension), None)
    if first is None:
        raise RepriseError(f"no input of {type(model).__name__} has a dimension {dimension}")
    now, device = first.size[dimension], model_device(model)
    live = alive_bytes(device)
    within = in_bytes(Budget(os.environ.get("REPRISE_BUDGET", "fit")), device, live).bytes
    if within is None:
        raise RepriseError(f"how much memory {device} has is not known; name a budget, as 20GiB")
    say(f"the sizes of dimension {dimension} that fit are looked for, from {now}")

    def graph(size: int) -> CapturedGraph:
        sized = tree_map(lambda x: _resized(x, dimension, now, size), shapes)
        more = sum(x.bytes for x in _shapes(sized)) - sum(x.bytes for x in _shapes(shapes))
        return sketched(model, sized[0], sized[1], max(0, live + more)).graph

    return now, searched(graph, within, now)


def _shapes(values: Any) -> list[Shape]:
    return [value for value in tree_leaves(values) if isinstance(value, Shape)]


def _resized(value: Any, dimension: int, now: int, size: int) -> Any:
    """Returns a shape with another size in one dimension; one of another size there, or anything
    else, unchanged."""
    is_shape = isinstance(value, Shape) and len(value.size) > dimension
    return value.resized(dimension, size) if is_shape and value.size[dimension] == now else value
