# SPDX-License-Identifier: Apache-2.0
"""JAX under a budget of memory: whole steps, planned op by op and confirmed by XLA.

    step = reprise.jax.auto(train_step, budget="0.5x")

docs/jax.md is the page for users.
"""

from __future__ import annotations

from reprise.jax.compiled import Memory, compiler_options
from reprise.jax.function import PlannedFunction, auto, value_and_grad
from reprise.jax.planning import Found

__all__ = [
    "Found",
    "Memory",
    "PlannedFunction",
    "auto",
    "compiler_options",
    "value_and_grad",
]
