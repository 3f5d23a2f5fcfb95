# SPDX-License-Identifier: Apache-2.0
"""Takes forwards out of a captured step whose graph had no backward in it: a batch that was
skipped, a validation with gradients. No step needs them, and in another one the next forward takes
the place of such a one (tape_run.py).

    step = without_idle(step)
"""

from __future__ import annotations

from dataclasses import replace

from reprise.torch.capture.captured import CapturedStep, SavedTensor

__all__ = ["without_idle"]


def without_idle(step: CapturedStep) -> CapturedStep:
    """Returns the step without the forwards that have saved tensors, none of which was unpacked; as
    it is if that is true of all. Their ops stay, as ops of the program's own."""

    def number(slot: SavedTensor) -> int:
        """Returns the number of the forward that saved a tensor."""
        return next(n for n, (_, end) in enumerate(step.regions) if slot.op <= end)

    of = [number(slot) for slot in step.slots]
    used = {of[unpack.slot] for unpack in step.unpacks}
    idle = set(of) - used
    if not idle or not used:
        return step
    kept = {slot: n for n, slot in enumerate(s for s, f in enumerate(of) if f not in idle)}
    for forward in idle:
        for op in step.ops[slice(*step.regions[forward])]:
            op.in_region = False
            for storage in op.writes:
                storage.in_region = False
    return replace(
        step,
        slots=[step.slots[slot] for slot in kept],
        unpacks=[replace(unpack, slot=kept[unpack.slot]) for unpack in step.unpacks],
        regions=[region for n, region in enumerate(step.regions) if n not in idle],
    )
