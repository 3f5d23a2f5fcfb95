# SPDX-License-Identifier: Apache-2.0
"""What was inferred of a step stays an estimate at every next command."""

from __future__ import annotations

import json
from typing import Any

import pytest
from cli_program import Reprise

WHY = "which op reads which tensor is inferred"
VERBS = {
    "plan": ["plan", "g.json", "--budget", "1330"],
    "plan, refused": ["plan", "g.json", "--budget", "1100"],
    "explain": ["explain", "g.json", "--budget", "1330"],
    "sweep": ["sweep", "g.json", "--points", "4"],
    "show": ["show", "p.json"],
    "verify": ["verify", "g.json", "p.json"],
    "verify, refused": ["verify", "g.json", "r.json"],
}


@pytest.fixture
def inferred(reprise: Reprise, graph: dict[str, Any]) -> Reprise:
    """A small step as if made from a profiler trace, with a plan and a refusal of it."""
    (reprise.folder / "g.json").write_text(json.dumps(graph | {"flavour": "trace"}))
    assert reprise("plan", "g.json", "--budget", "1330", "-o", "p.json").code == 0
    refused = reprise("plan", "g.json", "--budget", "1100", "--json")
    assert refused.code == 3
    (reprise.folder / "r.json").write_text(refused.out)
    return reprise


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("form", ["text", "json"])
def test_no_command_proves_anything_of_a_step_that_was_inferred(
    inferred: Reprise, verb: str, form: str
) -> None:
    result = inferred(*VERBS[verb], *(["--json"] if form == "json" else []))

    written = result.out + result.err
    assert WHY in written, written
    assert "proven optimal" not in written
    assert "Nothing fits" not in written
    if form == "json" and verb in ("plan", "show"):
        said = json.loads(result.out)
        said = said.get("plan", said)
        assert said["proven_optimal"] is False
        assert said["inferred"] == WHY


def test_the_same_step_captured_is_proven(reprise: Reprise, graph: dict[str, Any]) -> None:
    (reprise.folder / "g.json").write_text(json.dumps(graph))

    planned = reprise("plan", "g.json", "--budget", "1330")
    refused = reprise("plan", "g.json", "--budget", "1100")

    assert "proven optimal" in planned.out
    assert "Nothing fits" in refused.out + refused.err
    assert WHY not in planned.out + refused.out + refused.err
