# SPDX-License-Identifier: Apache-2.0
"""`tf.gradients` replaced for the whole process, so that optimizers use a plan unasked."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import tensorflow as tf
from tensorflow.python.ops import gradients as modern

from reprise.tensorflow.gradients import gradients

__all__ = ["replace_gradients", "replace_gradients_for_good", "restore_gradients"]

# Where optimizers and programs look for it.
_PLACES: tuple[tuple[Any, str], ...] = (
    (modern, "gradients"),
    (tf.compat.v1, "gradients"),
    (tf, "gradients"),
)
_replaced: list[tuple[Any, str, Any]] = []


def replace_gradients_for_good(function: Callable[..., Any]) -> None:
    """Puts `function` in the place of `tf.gradients`, until `restore_gradients`."""
    restore_gradients()
    for holder, name in _PLACES:
        _replaced.append((holder, name, getattr(holder, name)))
        setattr(holder, name, function)


def restore_gradients() -> None:
    """Puts TensorFlow's own gradient functions back."""
    while _replaced:
        holder, name, before = _replaced.pop()
        setattr(holder, name, before)


@contextmanager
def replace_gradients(
    budget: str | int | None = None,
    checkpoints: str | Sequence[Any] | None = None,
    **options: Any,
) -> Iterator[None]:
    """Within it, `tf.gradients` and the optimizers of `tf.compat.v1.train` plan their step."""
    replace_gradients_for_good(
        functools.partial(gradients, budget=budget, checkpoints=checkpoints, **options)
    )
    try:
        yield
    finally:
        restore_gradients()
