# SPDX-License-Identifier: Apache-2.0
"""Plans under which gradients differed: kept for whoever looks into it, never applied again.

One folder per plan in `$XDG_STATE_HOME/reprise/quarantine`: the step graph, the plan, a report.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

from reprise.plan import Plan


def _folder(plan: Plan) -> Path:
    base = os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")
    return Path(base) / "reprise" / "quarantine" / plan.plan_id


def holds(plan: Plan) -> bool:
    """Returns whether a plan was found wrong before."""
    folder = _folder(plan)
    try:
        return folder.is_dir()
    except OSError:
        return False


def put(plan: Plan, graph: bytes, report: dict[str, Any]) -> Path | None:
    """Writes the bundle; None where the disk does not want it."""
    folder = _folder(plan)
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        (folder / "graph.json").write_bytes(graph)
        (folder / "plan.json").write_text(json.dumps(asdict(plan), default=str))
        (folder / "report.json").write_text(json.dumps(report, default=str))
    except OSError:
        return None
    return folder
