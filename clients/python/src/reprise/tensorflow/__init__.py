# SPDX-License-Identifier: Apache-2.0
"""Plans TensorFlow steps within a memory budget: `tf.gradients` and `tf.function`, op by op.

    grads = reprise.tensorflow.gradients(loss, variables, budget="0.5x")

Needs TensorFlow 2.16 or newer. docs/tensorflow.md is the page for users.
"""

from __future__ import annotations

from reprise.tensorflow.function import PlannedFunction, auto
from reprise.tensorflow.gradients import gradients, replace_gradients
from reprise.tensorflow.planning import Applied, applied_to
from reprise.tensorflow.report import check, validate

__all__ = [
    "Applied",
    "PlannedFunction",
    "applied_to",
    "auto",
    "check",
    "gradients",
    "replace_gradients",
    "validate",
]
