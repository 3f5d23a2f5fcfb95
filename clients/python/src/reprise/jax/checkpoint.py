# SPDX-License-Identifier: Apache-2.0
"""A loss whose gradient is planned wherever it is taken: what one writes in place of
`jax.checkpoint`.

    loss = reprise.jax.checkpoint(loss, budget="0.5x")
    grads = jax.grad(loss)(params, batch)

The gradient of the loss is one planned program, which runs where the loss would run forward; the
way back multiplies by what comes from outside. A policy for `jax.checkpoint` cannot do the same:
it says what is kept and leaves the order to XLA, which then has most of the discarded values alive
at once again.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import update_wrapper
from typing import Any

import jax

from reprise.base.errors import RepriseError
from reprise.jax.function import PlannedFunction, auto
from reprise.jax.planning import MOST_EQUATIONS, Found
from reprise.plan.result import Known, Result


class CheckpointedLoss:
    """A loss that is called and differentiated as it was before, once."""

    def __init__(self, fun: Callable[..., Any], budget: str | int, **how: Any) -> None:
        # Of the newest gradient; None before the first.
        self.found: Found | None = None
        self._fun, self._budget, self._how = fun, budget, how
        self._known: dict[Any, PlannedFunction] = {}
        update_wrapper(self, fun, updated=())

    def reprise_report(self) -> Result:
        """Returns what is known of the newest gradient, for `reprise.report`."""
        if self.found is None:
            return Known("Nothing is planned before the first gradient.")
        return self.found.known(None)

    def __call__(self, *args: Any) -> Any:
        """Returns the loss; what differentiates it gets the planned gradient."""
        leaves, tree = jax.tree.flatten(args)

        def plain(*flat: Any) -> Any:
            return self._fun(*jax.tree.unflatten(tree, flat))

        def forward(*given: Any) -> tuple[Any, list[Any]]:
            wanted = tuple(i for i, one in enumerate(given) if one.perturbed)
            value, found = self._gradient(plain, tree, wanted)(*(one.value for one in given))
            return value, [
                found[wanted.index(i)] if i in wanted else None for i in range(len(given))
            ]

        def backward(found: list[Any], outside: Any) -> tuple[Any, ...]:
            if isinstance(outside, jax.custom_derivatives.SymbolicZero):
                return (None,) * len(found)
            return tuple(None if one is None else one * outside.astype(one.dtype) for one in found)

        loss = jax.custom_vjp(plain)
        loss.defvjp(forward, backward, symbolic_zeros=True)
        return loss(*leaves)

    def _gradient(
        self, plain: Callable[..., Any], tree: Any, wanted: tuple[int, ...]
    ) -> Callable[..., Any]:
        known = self._known.setdefault(
            (tree, wanted), auto(jax.value_and_grad(plain, wanted), self._budget, **self._how)
        )

        def call(*leaves: Any) -> Any:
            made = known(*leaves)
            self.found = known.found
            return made

        return call


def checkpoint(
    fun: Callable[..., Any],
    budget: str | int,
    *,
    on_infeasible: str = "plain",
    max_overhead: float | None = None,
    time_limit_s: float | None = None,
    most_equations: int = MOST_EQUATIONS,
    name: str | None = None,
) -> CheckpointedLoss:
    """Returns `fun`, which returns one number, with a gradient within `budget`, as `value_and_grad`
    has it. It may be differentiated once, in reverse mode, by any of its arguments, inside
    `jax.jit` too (there give `jax.jit` the `compiler_options()` of this package). The keywords are
    those of `auto`, and taking the gradient raises as a function of `auto` does."""
    if not callable(fun):
        raise RepriseError(f"checkpoint: must be a function, got {fun!r}"[:120])
    how: dict[str, Any] = {
        "on_infeasible": on_infeasible,
        "max_overhead": max_overhead,
        "time_limit_s": time_limit_s,
        "most_equations": most_equations,
        "name": name or getattr(fun, "__name__", None),
    }
    auto(fun, budget, **how)  # raises for what no plan can be asked with
    return CheckpointedLoss(fun, budget, **how)
