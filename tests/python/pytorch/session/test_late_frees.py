# SPDX-License-Identifier: Apache-2.0
"""A step that waited in vain for memory says so, because its time is not that of its plan."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from reprise.torch.session import late_frees
from reprise.torch.session.late_frees import LateFrees


@pytest.mark.parametrize("in_vain", [False, True])
def test_a_step_that_has_waited_in_vain_says_so(
    in_vain: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(late_frees, "several_ranks", lambda: True)
    limits: list[int | None] = []

    def wait_above(most: int | None) -> bool:
        limits.append(most)
        return in_vain

    plan = SimpleNamespace(plan_id="p", peak_bytes=90, budget_bytes=100)
    rung: Any = SimpleNamespace(
        plan=plan, covers=lambda _: True, beside=lambda *_: 0, exceeds=False, held_bytes=0
    )
    job: Any = SimpleNamespace(
        step=SimpleNamespace(key=None, live_begin=0, missing=0),
        meter=SimpleNamespace(wait_above=wait_above),
        budget=None,
    )
    late = LateFrees(job)

    assert not late.end()  # no step has begun
    late.begin(rung)
    assert late.end() is in_vain
    late.begin(rung)
    late.left()
    assert not late.end()  # it keeps everything: nothing waited to its end

    assert limits == [90, None, 100 if in_vain else 90, None]
