# SPDX-License-Identifier: Apache-2.0
"""A step of JAX under a budget: traced, planned, compiled and called as it was before.

step = reprise.jax.auto(train_step, budget="0.5x", donate_argnums=(0, 1))
for batch in data: params, state, loss = step(params, state, batch)
print(step.found.sentence)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, update_wrapper
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend import core

from reprise.base.budget import Budget
from reprise.base.errors import RepriseError
from reprise.jax.compiled import compile_flat
from reprise.jax.planning import MOST_EQUATIONS, Found, find
from reprise.jax.ulps import Difference, difference
from reprise.plan.result import Known, Result
from reprise.plan.wish import Wish, is_disabled

# Tracers of a program that is being written down, not of one that is being transformed.
_WRITING = ("DynamicJaxprTracer", "ShardMapTracer")


@dataclass(frozen=True, slots=True)
class Traced:
    """A function at one set of shapes: what it is, and what it was called with."""

    closed: Any
    leaves: tuple[Any, ...]
    result: Any
    donated: tuple[int, ...]


class PlannedFunction:
    """A step that is called as it was before. Each new set of shapes is a plan of its own."""

    def __init__(
        self,
        step: Callable[..., Any],
        wish: Wish,
        donate_argnums: int | Sequence[int] = (),
        static_argnums: int | Sequence[int] = (),
        most_equations: int = MOST_EQUATIONS,
        name: str | None = None,
    ) -> None:
        # Of the newest plan; None before the first call.
        self.found: Found | None = None
        # How far its results are from those without it; None before `check` compared them.
        self.difference: Difference | None = None
        self._step = step
        self._donate = _numbers(donate_argnums, "donate_argnums")
        self._static = _numbers(static_argnums, "static_argnums")
        self._wish = wish
        if not isinstance(most_equations, int) or isinstance(most_equations, bool):
            raise RepriseError(f"most_equations: must be an integer, got {most_equations!r}"[:120])
        self._how: dict[str, Any] = {
            "most_equations": most_equations,
            "name": name or getattr(step, "__name__", "JAX step"),
        }
        self._known: dict[Any, tuple[Found, Any]] = {}
        update_wrapper(self, step, updated=())

    @property
    def budget(self) -> Budget:
        """May be set between calls; plans that were made stay."""
        return self._wish.budget

    @budget.setter
    def budget(self, budget: str | int) -> None:
        self._wish = replace(self._wish, budget=Budget(budget))

    def reprise_report(self) -> Result:
        """Returns what is known of the newest plan, for `reprise.report`."""
        if self.found is None:
            return Known("Nothing is planned before the first call.")
        return self.found.known(None if self.difference is None else not self.difference.differing)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Runs a step; the first of each set of shapes is traced, planned and compiled before. In
        a function that JAX traces, the planned program becomes a part of that one."""
        for name, numbers in (("donate", self._donate), ("static", self._static)):
            if numbers and max(numbers) >= len(args):
                raise RepriseError(
                    f"{name}_argnums: there is no argument {max(numbers)}, it was called with "
                    f"{len(args)}"
                )
        leaves, key = self._flat(args, kwargs)
        if is_disabled():
            return self.unplanned(*args, **kwargs)
        writing = _is_writing(leaves)
        if key not in self._known:
            self._plan(self._wish, writing, args, kwargs)
        self.found, tree = self._known[key]
        run = self.found.function if writing else self.found.program
        return jax.tree.unflatten(tree, run(*leaves))

    def trace(self, *args: Any, **kwargs: Any) -> Traced:
        """Returns the function at these arguments, arrays or shapes, before anything is planned."""
        leaves, _ = self._flat(args, kwargs)
        made = jax.make_jaxpr(self._step, static_argnums=self._static, return_shape=True)
        closed, result = made(*args, **kwargs)
        donated = set(_donated_inside(closed))
        at = 0
        for number, arg in enumerate(args):
            if number in self._static:
                continue
            count = len(jax.tree.leaves(arg))
            if number in self._donate:
                donated.update(range(at, at + count))
            at += count
        return Traced(closed, tuple(leaves), result, tuple(sorted(donated)))

    def plan(self, *args: Any, **kwargs: Any) -> Found:
        """Plans and compiles for these arguments, arrays or shapes, and runs nothing. Raises
        `InfeasibleBudget` where no plan fits, whatever `on_infeasible` says."""
        return self._plan(replace(self._wish, on_infeasible="raise"), False, args, kwargs)

    def check(self, *args: Any, **kwargs: Any) -> Known:
        """Plans for these arrays, runs the step plain and planned on copies of them, and returns
        how far the results are apart. Raises as `plan` does."""
        found, made = self.plan(*args, **kwargs), self.trace(*args, **kwargs)
        if any(isinstance(leaf, jax.ShapeDtypeStruct) for leaf in made.leaves):
            raise RepriseError("check: takes the arrays of a call; `plan` takes shapes, too")
        plain = found.program
        if found.plan is not None:
            plain = compile_flat(core.jaxpr_as_fun(made.closed), made.leaves)
        results = [program(*map(jnp.copy, made.leaves)) for program in (plain, found.program)]
        self.difference = difference(*results)
        return replace(
            found.known(not self.difference.differing), sentence=self.difference.sentence
        )

    @cached_property
    def unplanned(self) -> Callable[..., Any]:
        """The step without a plan, as `jax.jit` compiles it, with the same donation."""
        jitted: Callable[..., Any] = jax.jit(
            self._step, donate_argnums=tuple(self._donate), static_argnums=tuple(self._static)
        )
        return jitted

    def _plan(self, wish: Wish, writing: bool, args: Any, kwargs: Any) -> Found:
        made = self.trace(*args, **kwargs)
        leaves = made.leaves
        if writing:
            leaves = tuple(jax.ShapeDtypeStruct(x.shape, x.dtype) for x in leaves)
        for leaf in leaves:
            devices = getattr(getattr(leaf, "sharding", None), "device_set", ())
            if len(devices) > 1:
                raise RepriseError(
                    f"auto: an argument of shape {leaf.shape} lies on {len(devices)} devices; plan "
                    "what runs on each of them, inside jax.shard_map"
                )
        found = find(made.closed, leaves, wish, donated=made.donated, **self._how)
        self._known[self._flat(args, kwargs)[1]] = found, jax.tree.structure(made.result)
        self.found, self.difference = found, None
        return found

    def _flat(self, args: Sequence[Any], kwargs: dict[str, Any]) -> tuple[list[Any], Any]:
        """Returns the leaves of all arguments, and what tells sets of shapes apart."""
        fixed = tuple(arg for number, arg in enumerate(args) if number in self._static)
        rest = [arg for number, arg in enumerate(args) if number not in self._static]
        leaves, tree = jax.tree.flatten((rest, kwargs))
        return leaves, (tree, fixed, tuple(map(_type_of, leaves)))


def _type_of(leaf: Any) -> Any:
    aval = leaf if isinstance(leaf, jax.ShapeDtypeStruct) else jax.typeof(leaf)
    return (aval.shape, str(aval.dtype), bool(getattr(aval, "weak_type", False)))


def _is_writing(leaves: Sequence[Any]) -> bool:
    """Returns True inside of a function that JAX traces. `RepriseError`: it is being
    transformed."""
    tracers = {type(leaf).__name__ for leaf in leaves if isinstance(leaf, jax.core.Tracer)}
    if tracers - set(_WRITING):
        raise RepriseError(
            "auto: the planned function is called inside jax.vmap or jax.grad; plan the function "
            "that these make: reprise.jax.auto(jax.grad(f), budget=...)"
        )
    return bool(tracers)


def _donated_inside(closed: Any) -> list[int]:
    """Returns the arguments that a function donates which `jax.jit` made."""
    eqns = closed.jaxpr.eqns
    if len(eqns) != 1 or list(eqns[0].invars) != list(closed.jaxpr.invars):
        return []
    return [i for i, given in enumerate(eqns[0].params.get("donated_invars", ())) if given]


def _numbers(numbers: int | Sequence[int], name: str) -> tuple[int, ...]:
    found = (numbers,) if isinstance(numbers, int) else numbers
    if not isinstance(found, Sequence) or not all(type(n) is int and n >= 0 for n in found):
        raise RepriseError(f"{name}: must be positions of arguments, got {numbers!r}"[:120])
    return tuple(found)


def auto(
    step: Callable[..., Any],
    budget: str | int,
    *,
    donate_argnums: int | Sequence[int] = (),
    static_argnums: int | Sequence[int] = (),
    on_infeasible: str = "plain",
    max_overhead: float | None = None,
    time_limit_s: float | None = None,
    most_equations: int = MOST_EQUATIONS,
    name: str | None = None,
) -> PlannedFunction:
    """Returns a function that does what `step` does, within `budget`: "0.5x", "2GiB", bytes of
    arguments, results and temporaries on a device. `step` may be made by `jax.jit`, and calls
    `jax.grad` itself; its update of the parameters may be a part of it.

    A `scan` is planned in parts as long as the program has at most `most_equations` equations with
    all of them. Where no plan fits, or none within `max_overhead`, the
    step runs without one and a line says why; with `on_infeasible="nearest"` it is planned within
    the smallest budget with a known plan, with "raise" the first call raises `InfeasibleBudget`.
    `RepriseError`: it cannot be planned as it is called."""
    if not callable(step):
        raise RepriseError(f"auto: must be a function, got {step!r}"[:120])
    wish = Wish.of(budget, on_infeasible, max_overhead, time_limit_s)
    return PlannedFunction(step, wish, donate_argnums, static_argnums, most_equations, name)


def value_and_grad(
    fun: Callable[..., Any],
    budget: str | int,
    *,
    argnums: int | Sequence[int] = 0,
    has_aux: bool = False,
    **how: Any,
) -> PlannedFunction:
    """Returns `jax.value_and_grad` within `budget`, which counts what these two take and nothing of
    the update. The other keywords are those of `auto`, and it raises as that does."""
    if not callable(fun):
        raise RepriseError(f"value_and_grad: must be a function, got {fun!r}"[:120])
    how.setdefault("name", getattr(fun, "__name__", None))
    return auto(jax.value_and_grad(fun, argnums, has_aux), budget, **how)
