# SPDX-License-Identifier: Apache-2.0
"""`reprise.report`: what is known of anything that is planned, in any framework."""

from __future__ import annotations

from typing import Any

from reprise.plan.result import Result

__all__ = ["report"]


def report(planned: Any) -> Result:
    """Returns predicted against measured of a model that `reprise.auto` or `reprise.keras.auto` has
    armed, or of a function that `reprise.tensorflow.auto`, `reprise.jax.auto` or
    `reprise.jax.value_and_grad` returned. `str` of it is a sentence. What is not known yet is 0 or
    None."""
    own = getattr(type(planned), "reprise_report", None)
    if own is not None:
        return own(planned)  # type: ignore[no-any-return]
    if "_reprise_step" in getattr(planned, "__dict__", {}):  # a model of Keras
        from reprise.keras.arming import report as of_keras

        return of_keras(planned)
    from reprise.torch.session import api

    return api.report(planned)
