# SPDX-License-Identifier: Apache-2.0
"""Reprise: train under a memory budget.

    import reprise
    model = reprise.auto(model, budget="0.5x")     # the training loop stays as it is
    ...
    print(reprise.report(model))                   # predicted against measured

Importing this package imports no framework, starts nothing and opens nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from reprise.errors import InfeasibleBudget, RepriseError, ServerUnavailable
from reprise.plan import Plan

if TYPE_CHECKING:
    from reprise.api import auto, remove, report

__version__ = "0.1.0"

__all__ = [
    "InfeasibleBudget",
    "Plan",
    "RepriseError",
    "ServerUnavailable",
    "__version__",
    "auto",
    "remove",
    "report",
]

_FROM_API = frozenset({"auto", "remove", "report"})


def __getattr__(name: str) -> Any:
    """Loads `reprise.api` at the first use of one of its names, not before."""
    if name in _FROM_API:
        from importlib import import_module

        return getattr(import_module("reprise.api"), name)
    raise AttributeError(f"module 'reprise' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
