# SPDX-License-Identifier: Apache-2.0
"""A memory budget where torchtitan's configuration asks for activation checkpointing.

In a function of a `config_registry.py`:

    from torchtitan_budget import BudgetAC, BudgetMetrics

    activation_checkpoint=BudgetAC.Config(budget="0.5x"),
    metrics=BudgetMetrics.Config(enable_tensorboard=True),

torchtitan applies the policy to each part of the model before it shards it. Nothing is wrapped:
Reprise plans the part when it trains.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import nn
from torchtitan.components.metrics import MetricsProcessor
from torchtitan.distributed.activation_checkpoint import ActivationCheckpointing

import reprise

__all__ = ["BudgetAC", "BudgetMetrics"]


class BudgetAC(ActivationCheckpointing):
    """Keeps each part of the model within a budget, instead of checkpointing its blocks."""

    @dataclass(kw_only=True, slots=True)
    class Config(ActivationCheckpointing.Config):
        """What the policy is configured with."""

        budget: str = "0.5x"
        """Peak memory of a rank: bytes ("8GiB"), a share of the device ("90%"), or of the memory of
        a step without a plan ("0.5x")."""

    config: Config

    def apply(self, model: nn.Module) -> None:
        """Gives a part of the model to Reprise."""
        reprise.auto(model, budget=self.config.budget)


class BudgetMetrics(MetricsProcessor):
    """Adds the figures of the plan to what torchtitan logs."""

    @dataclass(kw_only=True, slots=True)
    class Config(MetricsProcessor.Config):
        """What the metrics are configured with."""

    def log(
        self,
        step: int,
        global_avg_loss: float,
        global_max_loss: float,
        grad_norm: float,
        extra_metrics: dict[str, Any] | None = None,
    ) -> None:
        """Logs a step, with the figures of the first part of the model that has some."""
        figures = (reprise.figures(part) for part in self.model_parts or ())
        known = next(filter(None, figures), {})
        super().log(
            step, global_avg_loss, global_max_loss, grad_norm, {**known, **(extra_metrics or {})}
        )
