# SPDX-License-Identifier: Apache-2.0
"""bench/generate: step graphs of made-up jobs, as files that the command reads."""

from __future__ import annotations

import json

import pytest
from check_plan import check
from cli_program import Reprise

KINDS = ["transformer", "resnet", "unet", "moe", "diffusion-unet", "layered"]


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_generated_can_be_planned(reprise: Reprise, kind: str) -> None:
    made = reprise.generate(kind, "--ops", "200")

    assert made.code == 0, made
    assert made.out.splitlines()[-1] == f"  wrote {kind}-200.graph.json"
    file = f"{kind}-200.graph.json"
    planned = reprise("plan", file, "--budget", "0.95x", "--time-limit", "1s", "--json")
    assert planned.code == 0, planned
    check(json.loads((reprise.folder / file).read_text()), planned.json())


def test_the_seed_decides_and_nothing_else(reprise: Reprise) -> None:
    def made(name: str, seed: int) -> str:
        ask = ("layered", "--ops", "150", "--seed", str(seed), "--out", name)
        assert reprise.generate(*ask).code == 0
        return (reprise.folder / name).read_text()

    first = made("first.json", 3)

    assert made("again.json", 3) == first
    assert json.loads(made("other.json", 4))["ops"] != json.loads(first)["ops"]


def test_a_hundred_thousand_ops_are_written_and_read(reprise: Reprise) -> None:
    made = reprise.generate("moe", "--ops", "100000", "-o", "large.graph.json")
    shown = reprise("show", "large.graph.json", "--json")

    assert made.code == 0, made
    assert shown.code == 0, shown


def test_mistakes_are_named(reprise: Reprise) -> None:
    kind = reprise.generate("gpt")
    ops = reprise.generate("unet", "--ops", "99")
    folder = reprise.generate("unet", "--ops", "100", "--out", "none/here.json")

    kinds = "transformer, resnet, unet, moe, diffusion-unet or layered"
    assert (kind.code, kind.err) == (2, f'generate: kind "gpt": must be {kinds}\n')
    assert (ops.code, ops.err) == (2, "generate: --ops: must be from 100 to 1000000, got 99\n")
    assert (folder.code, folder.err) == (1, "generate: none/here.json: cannot be written\n")
