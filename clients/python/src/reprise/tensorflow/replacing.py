# SPDX-License-Identifier: Apache-2.0
"""Replaces `tf.gradients` in the whole process, so that optimizers use a plan without code
changes."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import tensorflow as tf
from tensorflow.python.ops import gradients as modern

from reprise.base.errors import RepriseError
from reprise.tensorflow.gradients import gradients

__all__ = [
    "replace_gradients",
    "replace_gradients_for_good",
    "restore_gradients",
    "see_assignments",
]

# The places where optimizers and programs look it up.
_PLACES: tuple[tuple[Any, str], ...] = (
    (modern, "gradients"),
    (tf.compat.v1, "gradients"),
    (tf, "gradients"),
)
_replaced: list[tuple[Any, str, Any]] = []


def replace_gradients_for_good(function: Callable[..., Any]) -> None:
    """Replaces `tf.gradients` by `function` until `restore_gradients`."""
    restore_gradients()
    for holder, name in _PLACES:
        _replaced.append((holder, name, getattr(holder, name)))
        setattr(holder, name, function)


def restore_gradients() -> None:
    """Restores TensorFlow's own gradient functions."""
    while _replaced:
        holder, name, before = _replaced.pop()
        setattr(holder, name, before)


def see_assignments() -> None:
    """Makes `tf.compat.v1` see an assignment to its `__dict__["gradients"]`. TensorFlow remembers
    a name of that module when it is first looked up, and returns the first value from then on."""
    module = tf.compat.v1
    remember = getattr(module, "_fastdict_insert", None)
    if remember is None or "_fastdict_insert" in vars(module):
        return

    def all_but_gradients(name: str, value: Any) -> None:
        if name != "gradients":
            remember(name, value)

    # Loaded once, so that it is in `__dict__`.
    getattr(module, "gradients")  # noqa: B009
    vars(module)["_fastdict_insert"] = all_but_gradients
    remember("_fastdict_insert", all_but_gradients)
    if module._fastdict_key_in("gradients"):
        module._fastdict_pop("gradients")


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
    replace_gradients_for_good(
        functools.partial(gradients, budget=budget, checkpoints=checkpoints, **options)
    )
    try:
        yield
    finally:
        restore_gradients()
