# SPDX-License-Identifier: Apache-2.0
"""What is known of anything that is planned, in any framework: as a report, and as figures for a
logger."""

from __future__ import annotations

from typing import Any

from reprise.plan.result import Known, Result


def report(planned: Any) -> Result:
    """Returns predicted against measured of a model that `reprise.auto` or `reprise.keras.auto` has
    armed, or of a function that `reprise.tensorflow.auto`, `reprise.jax.auto` or
    `reprise.jax.value_and_grad` returned. `str` of it is a sentence. What is not known yet is 0 or
    None."""
    own = getattr(type(planned), "reprise_report", None)
    if own is not None:
        return own(planned)  # type: ignore[no-any-return]
    step = getattr(planned, "__dict__", {}).get("_reprise_step")  # of a model of Keras
    if step is not None:
        return step.report() or Known("No step has run yet.")
    from reprise.torch.session import api

    return api.report(planned)


def figures(planned: Any) -> dict[str, float]:
    """Returns what is known of it by the names under which a logger stores it; what is not known
    yet is left out. In a loop with W&B: `wandb.log(reprise.figures(model))`.

    reprise/peak_bytes         the highest peak of a step under the newest plan, as measured
    reprise/budget_bytes       the budget
    reprise/added_time         what the plan adds to the time of a step, as predicted: 0.04 is 4 %
    reprise/over_budget_steps  steps under a plan that peaked above the budget
    """
    known = report(planned)
    found = {
        "reprise/peak_bytes": known.measured_bytes or None,
        "reprise/budget_bytes": known.budget_bytes or None,
        "reprise/added_time": known.overhead,
        "reprise/over_budget_steps": getattr(known, "over_budget_steps", None),
    }
    return {name: float(value) for name, value in found.items() if value is not None}
