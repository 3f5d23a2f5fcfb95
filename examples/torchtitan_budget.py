# SPDX-License-Identifier: Apache-2.0
"""A memory budget where torchtitan's configuration asks for activation checkpointing.

In a function of a `config_registry.py`:

    from torchtitan_budget import BudgetAC

    activation_checkpoint=BudgetAC.Config(budget="0.5x"),

torchtitan applies the policy to each part of the model before it shards it. Nothing is wrapped:
Reprise plans the part when it trains.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn
from torchtitan.distributed.activation_checkpoint import ActivationCheckpointing

import reprise

__all__ = ["BudgetAC"]


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
