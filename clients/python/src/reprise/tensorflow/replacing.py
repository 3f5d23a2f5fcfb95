# SPDX-License-Identifier: Apache-2.0
"""Replaces `tf.gradients` in the whole process, so that optimizers use a plan without code
changes."""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import tensorflow as tf
from tensorflow.python.ops import gradients as modern
from tensorflow.python.util.module_wrapper import TFModuleWrapper

from reprise.base.errors import RepriseError
from reprise.tensorflow.gradients import gradients

__all__ = ["replace_gradients", "see_assignments"]


def _holders() -> list[Any]:
    """Returns the modules in which optimizers and programs look `gradients` up. `import
    tensorflow.compat.v1` makes another module object than `tensorflow.compat.v1`."""
    found = {id(module): module for module in (modern, tf.compat.v1, tf)}
    for name, module in list(sys.modules.items()):
        if name.endswith("compat.v1") and issubclass(type(module), TFModuleWrapper):
            found[id(module)] = module
    return list(found.values())


def see_assignments() -> None:
    """Makes modules of TensorFlow see an assignment to their `__dict__["gradients"]`, those that
    are imported later, too. TensorFlow remembers a name of a module when it is first looked up, and
    returns the first value from then on."""
    remember = getattr(TFModuleWrapper, "_fastdict_insert", None)
    if remember is None or "_fastdict_insert" in vars(TFModuleWrapper):
        return

    def all_but_gradients(module: Any, name: str, value: Any) -> None:
        if name != "gradients":
            remember(module, name, value)

    TFModuleWrapper._fastdict_insert = all_but_gradients
    for module in _holders():
        for name in ("gradients", "_fastdict_insert"):
            if issubclass(type(module), TFModuleWrapper) and module._fastdict_key_in(name):
                module._fastdict_pop(name)


# At import, so that the assignment is seen whatever was imported before.
see_assignments()


@contextmanager
def replace_gradients(
    budget: str | int | None = None,
    checkpoints: str | Sequence[Any] | None = None,
    **options: Any,
) -> Iterator[None]:
    """Makes `tf.gradients` and the optimizers of `tf.compat.v1.train` plan their step inside this
    context. Raises RepriseError unless it is given one of budget and checkpoints."""
    if (budget is None) == (checkpoints is None):
        raise RepriseError("replace_gradients: give either budget= or checkpoints=")
    function = functools.partial(gradients, budget=budget, checkpoints=checkpoints, **options)
    before = [(holder, holder.gradients) for holder in _holders()]
    for holder, _ in before:
        holder.gradients = function
    try:
        yield
    finally:
        for holder, plain in before:
            holder.gradients = plain
