# SPDX-License-Identifier: Apache-2.0
"""Arms the models of a program that does not know of Reprise, when they are compiled.

    attach()      # once, after Keras was imported; the budget is in REPRISE_BUDGET

`reprise run --budget 0.5x -- python train.py` does this. A model that no plan fits, or that cannot
be planned, trains as without Reprise, and a line says why.
"""

from __future__ import annotations

import os
from functools import wraps
from typing import Any

import keras

from reprise.base.saying import say
from reprise.keras.arming import arm, is_armed
from reprise.plan.wish import Wish, is_disabled, no_plan

OLDEST = (3, 15)


def attach() -> None:
    """Makes every later `compile` of a model arm it, unless the program has armed it itself."""
    if is_disabled():
        return
    backend, version = keras.backend.backend(), keras.__version__
    budget = os.environ.get("REPRISE_BUDGET")
    if tuple(int(part) for part in version.split(".")[:2]) < OLDEST:
        say(f"Keras {version} is not planned; 3.15 and newer are")
        return
    holder = next(base for base in keras.Model.__mro__ if "compile" in vars(base))
    plain = holder.compile
    pid = os.getpid()
    told: list[str] = []

    @wraps(plain)
    def compile(model: Any, *args: Any, **kwargs: Any) -> Any:
        made = plain(model, *args, **kwargs)
        if os.getpid() == pid and isinstance(model, keras.Model) and not is_armed(model):
            why = _why_not(model, budget, backend)
            if why and why not in told:
                told.append(why)
                say(why)
        return made

    holder.compile = compile


def _why_not(model: Any, budget: str | None, backend: str) -> str:
    """Arms a model; returns why it was not, "" if it was."""
    if not budget and backend != "torch":
        return (
            f"no plan: Keras on {backend} is planned and measured only under a budget; "
            "reprise run --budget 0.5x -- ..."
        )
    try:
        arm(model, Wish.of(budget) if budget else None)
    except Exception as error:
        return no_plan(error)
    return ""
