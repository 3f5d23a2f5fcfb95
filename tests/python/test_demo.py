# SPDX-License-Identifier: Apache-2.0
"""What the demo prints at its end."""

from __future__ import annotations

import pytest

from reprise import demo
from reprise.plan.server import Server

RESULT = {
    "sentence": "It fits in 1.0 MiB.",
    "feasible": True,
    "losses_equal": True,
    "steps": 20,
    "run_id": "0a",
}


def test_the_verdict_ends_with_the_address_of_the_run_and_no_token_in_a_log(
    capsys: pytest.CaptureFixture[str],
) -> None:
    demo.print_verdict(RESULT, Server("127.0.0.1:7070", "secret"))

    out = capsys.readouterr().out
    assert "It fits in 1.0 MiB." in out
    assert out.endswith("Dashboard: http://127.0.0.1:7070/runs/0a\n")


def test_gradients_are_called_equal_only_where_gradients_were_compared() -> None:
    verdict = {"validated": True, "checks": 1, "valueChecks": 1, "valuesEqual": True}

    result = demo.verdict_json({"runId": "0a", "verdict": verdict}, same_losses=True)

    assert (result["values_equal"], result["gradients_equal"]) == (True, False)
    assert result["validated"]
