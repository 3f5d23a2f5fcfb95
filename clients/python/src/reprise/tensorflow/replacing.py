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

from reprise.tensorflow.gradients import gradients

__all__ = ["replace_gradients", "replace_gradients_for_good", "restore_gradients"]

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


@contextmanager
def replace_gradients(
    budget: str | int | None = None,
    checkpoints: str | Sequence[Any] | None = None,
    **options: Any,
) -> Iterator[None]:
    """Makes `tf.gradients` and the optimizers of `tf.compat.v1.train` plan their step inside this
    context."""
    replace_gradients_for_good(
        functools.partial(gradients, budget=budget, checkpoints=checkpoints, **options)
    )
    try:
        yield
    finally:
        restore_gradients()
