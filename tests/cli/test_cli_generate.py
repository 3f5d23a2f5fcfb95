# SPDX-License-Identifier: Apache-2.0
"""reprise generate: step graphs of made-up jobs."""

from __future__ import annotations

import json

import pytest
from check_plan import check
from cli_program import Reprise

KINDS = ["transformer", "resnet", "unet", "moe", "diffusion-unet", "layered"]


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_generated_can_be_planned(reprise: Reprise, kind: str) -> None:
    made = reprise("generate", kind, "--ops", "200")

    assert made.code == 0, made
    assert made.out.splitlines()[-1] == f"  wrote {kind}-200.graph.json"
    file = f"{kind}-200.graph.json"
    planned = reprise("plan", file, "--budget", "0.95x", "--time-limit", "1s", "--json")
    assert planned.code == 0, planned
    check(json.loads((reprise.folder / file).read_text()), planned.json())


def test_the_seed_decides_and_nothing_else(reprise: Reprise) -> None:
    first = reprise("generate", "layered", "--ops", "150", "--seed", "3", "--json")
    again = reprise("generate", "layered", "--ops", "150", "--seed", "3", "--json")
    other = reprise("generate", "layered", "--ops", "150", "--seed", "4", "--json")

    assert first.out == again.out
    assert first.json()["ops"] != other.json()["ops"]
    assert list(reprise.folder.iterdir()) == []


def test_a_hundred_thousand_ops_are_written_and_read(reprise: Reprise) -> None:
    made = reprise("generate", "moe", "--ops", "100000", "-o", "large.graph.json")
    shown = reprise("show", "large.graph.json", "--json")

    assert made.code == 0, made
    assert shown.code == 0, shown


def test_mistakes_are_named(reprise: Reprise) -> None:
    assert reprise.fails(2, "generate", "gpt") == (
        'kind "gpt": must be transformer, resnet, unet, moe, diffusion-unet or layered'
    )
    assert reprise.fails(2, "generate", "unet", "--ops", "99") == (
        "--ops: must be from 100 to 1000000, got 99"
    )
    (reprise.folder / "unet-100.graph.json").write_text("mine")
    assert "exists already; pass --force" in reprise.fails(1, "generate", "unet", "--ops", "100")
    assert (reprise.folder / "unet-100.graph.json").read_text() == "mine"
