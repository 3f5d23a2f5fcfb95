# SPDX-License-Identifier: Apache-2.0
"""`reprise.report`: what is known of anything that is planned, in any framework."""

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
