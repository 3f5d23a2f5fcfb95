# SPDX-License-Identifier: Apache-2.0
"""What XLA says of a compiled program: its buffers, and the options under which a plan's order
holds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax

from reprise.base.errors import RepriseError
from reprise.jax.cache import cached

# On the CPU, XLA takes optimization barriers out before it melts and orders instructions, and
# merges what they held apart. Without this pass they stay until memory has been assigned.
_KEEP_BARRIERS = {"cpu": {"xla_disable_hlo_passes": "cse_barrier_expander"}}
# What depends on no input is tied to nothing, and the usual scheduler of the CPU makes all of that
# first: the empty stacks of all loops, the ranges of all scatters. This one does not, and packs
# some other programs worse.
_SCHEDULERS = {"cpu": {"xla_cpu_scheduler_type": "CPU_SCHEDULER_TYPE_MEMORY_OPTIMIZED"}}

# The CPU's memory is assigned before its instructions are made better, which takes half the time.
_BYTES_ALONE = {"cpu": {"xla_backend_optimization_level": 0}}
# Without the emitters of fused loops, a small program takes less than half of that, and a few bytes
# may differ where a loop reads windows or scattered rows.
_ROUGH_BYTES = {"cpu": {**_BYTES_ALONE["cpu"], "xla_cpu_use_fusion_emitters": False}}


def compiler_options(backend: str | None = None) -> dict[str, Any]:
    """Returns the `compiler_options` of `jax.jit` under which XLA keeps the order of a plan. Needed
    where a planned function is a part of another one that is compiled as a whole."""
    return ways_to_compile(backend)[0]


def ways_to_compile(backend: str | None = None) -> list[dict[str, Any]]:
    """Returns all options under which XLA keeps the order of a plan, the best ones first."""
    name = backend or jax.default_backend()
    kept = _KEEP_BARRIERS.get(name, {})
    return [{**kept, **_SCHEDULERS[name]}, kept] if name in _SCHEDULERS else [kept]


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes of XLA's buffer assignment, per device."""

    arguments: int
    outputs: int
    # Outputs that lie in donated arguments.
    aliased: int
    temporaries: int

    @property
    def static(self) -> int:
        """The bytes of arguments and results."""
        return self.arguments + self.outputs - self.aliased

    @property
    def total(self) -> int:
        """The bytes of the whole program: arguments, results and temporaries."""
        return self.static + self.temporaries


def memory_of(compiled: Any) -> Memory:
    """Returns the figures of a compiled program; `RepriseError` where its backend gives none."""
    found = compiled.memory_analysis()
    if found is None:
        raise RepriseError(
            f"{jax.default_backend()}: XLA says nothing of its memory here, so no plan can be held "
            "to its budget"
        )
    return Memory(
        int(found.argument_size_in_bytes),
        int(found.output_size_in_bytes),
        int(found.alias_size_in_bytes),
        int(found.temp_size_in_bytes),
    )


def compile_flat(
    function: Callable[..., Any],
    arguments: Sequence[Any],
    donated: Sequence[int] = (),
    options: dict[str, Any] | None = None,
) -> Any:
    """Compiles a function of flat arguments, which may be shapes; `options`: a plan's. What an
    earlier process has compiled is loaded."""
    jitted = jax.jit(
        function, donate_argnums=tuple(donated), compiler_options=options or None, keep_unused=True
    )
    return cached(jitted.lower(*arguments).compile)


def measured(
    function: Callable[..., Any],
    arguments: Sequence[Any],
    donated: Sequence[int] = (),
    options: dict[str, Any] | None = None,
    *,
    roughly: bool = False,
) -> Memory:
    """Compiles as `compile_flat` does, for the bytes alone: what it makes may be slow to run.
    `roughly`: XLA may assign some bytes more or less in the end."""
    fast = (_ROUGH_BYTES if roughly else _BYTES_ALONE).get(jax.default_backend(), {})
    return memory_of(compile_flat(function, arguments, donated, {**(options or {}), **fast}))
