# SPDX-License-Identifier: Apache-2.0
"""Finds the end of a step in a loop that updates its parameters without an optimizer of torch.

    updates.seen()           # a forward begins in a step: were parameters updated since the last?

A loop may write its parameters itself, or copy them from master weights that something else has
updated. Then a step ends with the first forward after such a write. Looked at are the version
counters and the bytes of a few small parameters, and only until an optimizer of torch has stepped
for the model: from then on that ends its steps.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from reprise.torch.compiled.digest import digest
from reprise.torch.internals.ops import PLAIN_TYPES
from reprise.torch.job.job import EagerJob

FEW = 4


class Updates:
    """Looks at the parameters of one session's model."""

    def __init__(self, job: EagerJob) -> None:
        self._job = job
        self._known: list[tuple[int, int, bytes]] = []

    def seen(self) -> bool:
        """Returns whether parameters were updated since the last forward, in a job without an
        optimizer."""
        job = self._job
        if not job.step.cycle.is_empty:
            return False
        before, self._known = self._known, self._now()
        return bool(before) and job.step.under_way and before != self._known

    def _now(self) -> list[tuple[int, int, bytes]]:
        """Returns identity, version and digest of the smallest parameters that are trained."""
        model = self._job.model
        trained = [p for p in model.parameters() if p.requires_grad and type(p) in PLAIN_TYPES]
        few: Sequence[Tensor] = sorted(trained, key=lambda p: p.numel())[:FEW]
        return [(id(p), p._version, digest(p)) for p in few]
