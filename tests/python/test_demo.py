# SPDX-License-Identifier: Apache-2.0
"""What the demo prints at its end."""

from __future__ import annotations

import pytest

from reprise import demo

RESULT = {
    "sentence": "It fits in 1.0 MiB.",
    "feasible": True,
    "losses_equal": True,
    "steps": 20,
    "run_id": "0a",
}


@pytest.mark.parametrize("stays", [True, False])
def test_the_address_of_the_dashboard_is_printed_only_if_the_daemon_stays(
    stays: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    server = demo.Server("http://127.0.0.1:7070", "secret")

    demo.print_verdict(RESULT, server, stays=stays)

    out = capsys.readouterr().out
    assert "It fits in 1.0 MiB." in out
    assert ("http://127.0.0.1:7070/runs/0a" in out) == stays
    assert (f"reprise serve --data-dir {demo.state_folder()}" in out) == (not stays)


def test_gradients_are_called_equal_only_where_gradients_were_compared() -> None:
    verdict = {"validated": True, "checks": 1, "valueChecks": 1, "valuesEqual": True}

    result = demo.verdict_json({"runId": "0a", "verdict": verdict}, same_losses=True)

    assert (result["values_equal"], result["gradients_equal"]) == (True, False)
    assert result["validated"]
