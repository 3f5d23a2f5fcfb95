# SPDX-License-Identifier: Apache-2.0
"""The functions of gradient checkpointing for TensorFlow 1, with their names and arguments.

Code written for them runs once its import is changed to this module. So does the idiom that
replaces the gradients of the whole process:

    from reprise.tensorflow import compat as memory_saving_gradients
    from tensorflow.python.ops import gradients
    gradients.__dict__["gradients"] = memory_saving_gradients.gradients_memory

and the one for programs that call `tf.gradients` themselves, under `import tensorflow.compat.v1 as
tf`:

    tf.__dict__["gradients"] = memory_saving_gradients.gradients_memory
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from reprise.tensorflow.gradients import gradients as planned
from reprise.tensorflow.replacing import see_assignments

__all__ = ["gradients", "gradients_collection", "gradients_memory", "gradients_speed"]

see_assignments()


def gradients(
    ys: Any,
    xs: Any,
    grad_ys: Any = None,
    checkpoints: str | Sequence[Any] = "collection",
    **kwargs: Any,
) -> list[Any]:
    """Returns gradients that keep only `checkpoints`: "collection", "memory", "speed" or a list of
    tensors."""
    found: list[Any] = planned(ys, xs, grad_ys, checkpoints=checkpoints, **kwargs)
    return found


def gradients_speed(ys: Any, xs: Any, grad_ys: Any = None, **kwargs: Any) -> list[Any]:
    """Returns gradients that keep the outputs of convolutions and matrix products."""
    return gradients(ys, xs, grad_ys, checkpoints="speed", **kwargs)


def gradients_memory(ys: Any, xs: Any, grad_ys: Any = None, **kwargs: Any) -> list[Any]:
    """Returns gradients that keep about the square root of the articulation points."""
    return gradients(ys, xs, grad_ys, checkpoints="memory", **kwargs)


def gradients_collection(ys: Any, xs: Any, grad_ys: Any = None, **kwargs: Any) -> list[Any]:
    """Returns gradients that keep the tensors of the graph's collection "checkpoints"."""
    return gradients(ys, xs, grad_ys, checkpoints="collection", **kwargs)
