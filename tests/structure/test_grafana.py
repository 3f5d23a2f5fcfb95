"""The dashboard for Grafana and the alerts of Prometheus read metrics that the daemon has."""

from __future__ import annotations

import json
import re
from itertools import combinations
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
DASHBOARD: dict[str, Any] = json.loads((ROOT / "deploy/grafana/reprise.json").read_text())
PANELS: list[dict[str, Any]] = DASHBOARD["panels"]


def test_every_metric_is_one_of_the_daemon() -> None:
    server = "".join(path.read_text() for path in (ROOT / "server").rglob("*.[ch]*"))
    there = set(re.findall(r'"(?:[^"\n]*[ n])?(reprise_[a-z_]+)[" {]', server))
    variable = DASHBOARD["templating"]["list"][1]["query"]
    exprs = [variable, *(target["expr"] for panel in PANELS for target in panel["targets"])]
    rules = (ROOT / "deploy/prometheus/reprise.rules.yml").read_text()
    alerts = re.findall(r"^ +expr: (.+(?:\n {10}.+)*)", rules, flags=re.MULTILINE)
    assert len(alerts) == rules.count("- alert: ")
    drawn = {name for expr in [*exprs, *alerts] for name in re.findall(r"reprise_[a-z_]+", expr)}

    missing = {
        name
        for name in drawn
        if name not in there and re.sub("_(bucket|sum|count)$", "", name) not in there
    }

    assert len(drawn) > 10
    assert missing == set()


def test_every_panel_says_what_it_draws_and_none_lies_over_another() -> None:
    def cells(panel: dict[str, Any]) -> set[tuple[int, int]]:
        at = panel["gridPos"]
        return {(at["x"] + i, at["y"] + j) for i in range(at["w"]) for j in range(at["h"])}

    assert len({panel["id"] for panel in PANELS}) == len(PANELS)
    for panel in PANELS:
        assert panel["title"]
        assert panel["description"].endswith(".")
        assert all(x < 24 for x, _ in cells(panel))
        assert panel["fieldConfig"]["defaults"]["unit"]
    assert not any(cells(a) & cells(b) for a, b in combinations(PANELS, 2))
