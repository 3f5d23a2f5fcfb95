# SPDX-License-Identifier: Apache-2.0
"""Every habit, plainly and armed, compared to the bit after every step."""

from __future__ import annotations

import os
import random
from typing import Any

import habits_change  # noqa: F401
import habits_forward  # noqa: F401
import habits_loop  # noqa: F401
import torch
from habits import HABITS, differing, evidence

__all__ = ["ALL", "HABITS", "compare"]

ALL = os.environ.get("REPRISE_HABITS") == "all"


def run(name: str, armed: Any) -> list[dict[str, str]]:
    torch.manual_seed(7)
    random.seed(7)
    return [evidence(shown) for shown in HABITS[name](armed)]


_plain: dict[str, list[dict[str, str]]] = {}


def compare(name: str, armed: Any) -> None:
    if name not in _plain:
        _plain[name] = run(name, lambda model: model)

    found = run(name, armed)

    assert len(found) == len(_plain[name])
    for step, (left, right) in enumerate(zip(_plain[name], found, strict=True)):
        assert differing(left, right) == [], f"step {step}"
