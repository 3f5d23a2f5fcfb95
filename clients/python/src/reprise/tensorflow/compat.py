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

from functools import partial, update_wrapper
from typing import Any

from reprise.tensorflow.gradients import gradients as planned


def _keeping(checkpoints: str) -> Any:
    """Returns `tf.gradients` with these checkpoints, unless it is called with others."""
    return update_wrapper(partial(planned, checkpoints=checkpoints), planned)


gradients = gradients_collection = _keeping("collection")
gradients_memory, gradients_speed = _keeping("memory"), _keeping("speed")
