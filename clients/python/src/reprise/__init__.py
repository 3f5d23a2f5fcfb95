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

from reprise.base.errors import RepriseError, ServerUnavailable

if TYPE_CHECKING:
    from reprise.agent.abi import pause
    from reprise.agent.received import InfeasibleBudget, Plan
    from reprise.results import figures, report
    from reprise.torch.estimation.estimate import estimate
    from reprise.torch.estimation.fit import fit
    from reprise.torch.estimation.saved import saved
    from reprise.torch.session.ab import check
    from reprise.torch.session.api import auto, remove
    from reprise.torch.session.keep import keep

__version__ = "0.2.0"

__all__ = [
    "InfeasibleBudget",
    "Plan",
    "RepriseError",
    "ServerUnavailable",
    "__version__",
    "auto",
    "check",
    "estimate",
    "figures",
    "fit",
    "keep",
    "pause",
    "remove",
    "report",
    "saved",
]

# The modules of the names that need more than a few milliseconds, a framework or the agent.
_LATER = {
    "InfeasibleBudget": "reprise.agent.received",
    "Plan": "reprise.agent.received",
    "auto": "reprise.torch.session.api",
    "check": "reprise.torch.session.ab",
    "estimate": "reprise.torch.estimation.estimate",
    "figures": "reprise.results",
    "fit": "reprise.torch.estimation.fit",
    "keep": "reprise.torch.session.keep",
    "pause": "reprise.agent.abi",
    "remove": "reprise.torch.session.api",
    "report": "reprise.results",
    "saved": "reprise.torch.estimation.saved",
}


def __getattr__(name: str) -> Any:
    """Loads a module at the first use of its name, not before."""
    if name in _LATER:
        from importlib import import_module

        return getattr(import_module(_LATER[name]), name)
    raise AttributeError(f"module 'reprise' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
