# SPDX-License-Identifier: Apache-2.0
"""The Trainer of transformers, and those of TRL that build on it, under a memory budget.

    from reprise.hf import BudgetCallback
    trainer = Trainer(model=model, args=args, callbacks=[BudgetCallback("20GiB")], ...)
    trainer.train()
    print(reprise.report(model))

What is known of the plan is in the Trainer's own log (reprise.figures), so every tracker that the
Trainer reports to has it.
"""

from __future__ import annotations

import sys
from typing import Any

from transformers import TrainerCallback  # type: ignore[import-untyped, import-not-found, unused-ignore]

import reprise


class BudgetCallback(TrainerCallback):  # type: ignore[misc, unused-ignore]
    """Trains the Trainer's model under a budget. Arguments are those of `reprise.auto`."""

    def __init__(self, budget: str | int | None = "0.5x", **options: Any) -> None:
        self._budget = budget
        self._options = options

    def on_train_begin(
        self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any
    ) -> None:
        """Arms the model, which is where and what it will be during training."""
        reprise.auto(model, self._budget, **self._options)
        self._goes_first()

    def on_log(
        self,
        args: Any,
        state: Any,
        control: Any,
        logs: Any = None,
        model: Any = None,
        **kwargs: Any,
    ) -> None:
        """Adds the figures to what is logged of a training step."""
        if not logs or "loss" not in logs:
            return
        known = reprise.figures(model)
        logs.update(known)
        if state.log_history:  # which has a copy of what was logged before the callbacks ran
            state.log_history[-1].update(known)

    def _goes_first(self) -> None:
        """Moves this callback before those that report, which run in their order. The Trainer adds
        a program's own at the end and gives none of them a handle on the list."""
        frame = sys._getframe(2)
        others = getattr(frame.f_locals.get("self"), "callbacks", None)
        if isinstance(others, list) and self in others:
            others.remove(self)
            others.insert(0, self)
